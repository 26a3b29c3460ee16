"""YAML without surprises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.config import plain_yaml

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60)
@given(PLAIN)
def test_what_is_dumped_is_loaded_again(data: Any) -> None:
    assert plain_yaml.load(plain_yaml.dump(data)) == data


@settings(max_examples=60)
@given(PLAIN)
def test_a_yaml_1_1_reader_reads_the_same(data: Any) -> None:
    assert yaml.safe_load(plain_yaml.dump(data)) == data


@pytest.mark.parametrize(
    "text", ["yes", "No", "on", "OFF", "y", "010", "0x1F", "1_000", "12:30", "2024-01-01", "=", "<<"]
)
def test_yaml_1_1_surprises_are_text(text: str) -> None:
    assert plain_yaml.load(text) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e6", 1e6), ("1.048576e+06", 1048576.0), (".5", 0.5), ("-2", -2), ("+3", 3), ("0", 0), ("1.", 1.0)],
)
def test_numbers_are_read_as_yaml_1_2_reads_them(text: str, value: float) -> None:
    read = plain_yaml.load(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(("text", "value"), [("true", True), ("FALSE", False), ("null", None), ("~", None), ("", None)])
def test_truth_values_and_null_are_read(text: str, value: object) -> None:
    assert plain_yaml.load(text) is value


def test_numbers_that_are_not_finite_are_read_as_such() -> None:
    infinite, negative, nothing = plain_yaml.load("[.inf, -.INF, .nan]")
    assert (infinite, negative) == (math.inf, -math.inf)
    assert math.isnan(nothing)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\na: 1", "a key stands twice"),
        ("{a: {b: 1, b: 2}}", "a key stands twice"),
        ("1: a", "a key must be text"),
        ("~: a", "a key must be text"),
        ("[a]: b", "a key must be text"),
        ("a: &x 1", "anchors and aliases"),
        ("a: *x", "anchors and aliases"),
        ("a: !!python/object/apply:os.system [ls]", "tags are not read"),
        ("!!str 1", "tags are not read"),
        ("! 1", "tags are not read"),
        ("a\n--- \nb", "another document"),
        ('"\\udfff"', "surrogate"),
    ],
)
def test_what_is_not_plain_is_refused(text: str, problem: str) -> None:
    with pytest.raises(yaml.YAMLError, match=problem):
        plain_yaml.load(text)


def test_a_pyramid_of_aliases_never_grows() -> None:
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9) if n else 'x'}]" for n in range(9)]
    with pytest.raises(yaml.YAMLError, match="anchors and aliases"):
        plain_yaml.load("\n".join(levels))


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_nesting_is_bounded(opening: str) -> None:
    with pytest.raises(yaml.YAMLError, match="too deep"):
        plain_yaml.load(opening * 2000)


def test_nesting_within_the_bound_is_read() -> None:
    depth = plain_yaml.MAX_DEPTH
    assert plain_yaml.load("[" * depth + "]" * depth) is not None
