"""Whatever stands in a `prism` object is understood as it was written or refused by its path; nothing else happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from prism.core.segments import SegmentKind
from prism.engine.frontend.prism_field import (
    FIELD,
    PrismField,
    check_hints,
    parse_prism_field,
    raw_prism_field,
    refuse_prism_field,
)
from prism.errors import InvalidRequest

T = TypeVar("T")
thorough = settings(max_examples=300)

TEXT = st.text(st.characters(exclude_categories=[]), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)
KINDS = st.sampled_from([kind.value for kind in SegmentKind])
HINTS = st.fixed_dictionaries(
    {"message": st.integers(0, 3), "kind": KINDS},
    optional={"part": st.none() | st.integers(0, 2), "id": st.none() | st.text(min_size=1, max_size=128)},
)
GOOD = st.fixed_dictionaries(
    {},
    optional={
        "reorder": st.booleans() | st.none(),
        "segments": st.lists(HINTS, max_size=3),
        "deadline_seconds": st.floats(1e-6, 1e9),
    },
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.just("user"), "content": TEXT | st.lists(ANYTHING, max_size=3)}), max_size=4
)


@st.composite
def nearly_good(draw: st.DrawFn) -> Any:
    """A good object in which one value, at any depth, has become something else."""
    value = draw(GOOD)
    places = list(_places(value))
    if places:
        holder, key = draw(st.sampled_from(places))
        holder[key] = draw(ANYTHING)
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, one in inside for place in [(value, key), *_places(one)]]


def outcome(check: Callable[[], T]) -> T | InvalidRequest:
    """What a check returns, or the mistake that it found."""
    try:
        return check()
    except InvalidRequest as mistake:
        return mistake


def read(value: Any) -> PrismField | InvalidRequest | None:
    return outcome(lambda: parse_prism_field(value))


@thorough
@given(ANYTHING | nearly_good())
def test_a_value_is_taken_as_it_was_written_or_refused_by_its_path(value: Any) -> None:
    found = read(value)
    if isinstance(found, InvalidRequest):
        assert found.param == FIELD or str(found.param).startswith((f"{FIELD}.", f"{FIELD}["))
        assert found.status == 400
    elif found is not None:
        assert json.loads(found.model_dump_json(exclude_unset=True)) == json.loads(json.dumps(value))


@thorough
@given(GOOD)
def test_a_good_object_is_taken(value: dict[str, Any]) -> None:
    assert isinstance(read(value), PrismField)


@thorough
@given(st.lists(HINTS, max_size=4), MESSAGES)
def test_hints_fit_their_messages_or_are_refused_by_their_path(hints: list[Any], messages: list[Any]) -> None:
    field = parse_prism_field({"segments": hints})
    assert field is not None
    mistake = outcome(lambda: check_hints(field.segments, messages))
    if mistake is None:
        assert all(hint["message"] < len(messages) for hint in hints)
    else:
        assert str(mistake.param).startswith("prism.segments[")


@thorough
@given(st.binary(max_size=60) | ANYTHING.map(lambda value: json.dumps({"prism": value}).encode()))
def test_a_body_is_looked_into_without_harm(body: bytes) -> None:
    found = raw_prism_field(body)
    mistake = outcome(lambda: refuse_prism_field(body, "/tokenize"))
    assert mistake is None or mistake.param == FIELD
    assert found is None or mistake is not None


def test_a_body_nested_beyond_reason_is_left_to_who_parses_it() -> None:
    assert raw_prism_field(b'{"prism": ' + b"[" * 100_000) is None
