"""A settings file with one thing changed is in force as it was written, or refused with a sentence."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from prism.config.document import REASONS, in_force, parse_document
from prism.config.schema import PrismSpec
from prism.errors import InvalidDocument

thorough = settings(max_examples=200)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=6)
    | st.sampled_from(["true", "1e3", "~", "0x10", "12:30:45", "abc", -1, 0, 2**63])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def whole() -> dict[str, Any]:
    """A document in which every field is written out."""
    spec = PrismSpec.model_validate({"rollout": {}, "selector": {"matchLabels": {"a": "b"}}, "tracing": {}})
    return {
        "stable": {
            "source": "team/rag",
            "uid": "u",
            "generation": 3,
            "spec": spec.model_dump(mode="json", by_alias=True),
        }
    }


def places(value: Any) -> list[tuple[Any, Any]]:
    inside = value.items() if isinstance(value, dict) else ()
    return [place for key, one in inside for place in [(value, key), *places(one)]]


@st.composite
def nearly_good(draw: st.DrawFn) -> dict[str, Any]:
    """The whole document with one value made something else, taken away, or an unknown one beside it."""
    document = whole()
    holder, key = draw(st.sampled_from(places(document)))
    match draw(st.sampled_from(["other", "gone", "unknown"])):
        case "other":
            holder[key] = draw(ANYTHING)
        case "gone":
            del holder[key]
        case _:
            holder[f"{key}s"] = draw(ANYTHING)
    return document


def read(content: bytes) -> dict[str, Any] | InvalidDocument:
    """What is in force, as it would be written, or the refusal."""
    try:
        settings = in_force(parse_document(content), "pod-0")
    except InvalidDocument as refusal:
        return refusal
    return settings.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)


def test_the_whole_document_is_good() -> None:
    assert read(json.dumps(whole()).encode()) == whole()["stable"]["spec"]


@thorough
@given(nearly_good())
def test_a_changed_document_is_in_force_as_it_was_written_or_refused(document: dict[str, Any]) -> None:
    found = read(json.dumps(document).encode())
    if isinstance(found, InvalidDocument):
        assert found.reason in REASONS
        assert str(found)
    else:
        assert found == json.loads(json.dumps(document["stable"]["spec"]))
