"""The `prism` object of a request: what is understood, and what every mistake is answered with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

from prism.core.segments import SegmentKind
from prism.engine.frontend.prism_field import (
    RAW_FIELD,
    SegmentHint,
    check_hints,
    parse_prism_field,
    read_prism_field,
    refuse_prism_field,
)
from prism.errors import InvalidRequest


def _request(**extra: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest.model_validate(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], **extra}
    )


def test_a_request_without_the_object_has_none() -> None:
    assert read_prism_field(_request()) is None


def test_null_is_the_same_as_absent() -> None:
    assert read_prism_field(_request(prism=None)) is None


def test_everything_that_is_documented_is_read() -> None:
    hint = {"message": 0, "part": None, "kind": "history", "id": "a"}
    field = read_prism_field(_request(prism={"reorder": True, "segments": [hint], "deadline_seconds": 2}))
    assert field is not None
    assert field.reorder is True
    assert field.deadline_seconds == 2
    assert field.segments == [SegmentHint(message=0, kind=SegmentKind.HISTORY, id="a")]


def test_false_is_a_value_and_not_absent() -> None:
    field = parse_prism_field({"reorder": False})
    assert field is not None
    assert field.reorder is False


def test_routes_that_drop_unknown_keys_pass_the_object_beside_the_request() -> None:
    token = RAW_FIELD.set({"reorder": True})
    try:
        field = read_prism_field(_request())
    finally:
        RAW_FIELD.reset(token)
    assert field is not None
    assert field.reorder is True


_HINT = {"message": 0, "kind": "document"}
_MISTAKES = [
    ([], "prism", "must be an object"),
    ("x", "prism", "must be an object"),
    ({"order": 1}, "prism.order", "accepted reorder, segments, deadline_seconds"),
    ({"reorder": "yes"}, "prism.reorder", "boolean"),
    ({"reorder": 1}, "prism.reorder", "boolean"),
    ({"deadline_seconds": 0}, "prism.deadline_seconds", "greater than 0"),
    ({"deadline_seconds": float("inf")}, "prism.deadline_seconds", "finite"),
    ({"deadline_seconds": True}, "prism.deadline_seconds", "number"),
    ({"segments": {}}, "prism.segments", "list"),
    ({"segments": [{"message": 0}]}, "prism.segments[0].kind", "required"),
    ({"segments": [{**_HINT, "kind": "doc"}]}, "prism.segments[0].kind", "tool_output"),
    ({"segments": [{**_HINT, "kind": 1}]}, "prism.segments[0].kind", "system"),
    ({"segments": [_HINT, {**_HINT, "message": -1}]}, "prism.segments[1].message", "greater than or equal to 0"),
    ({"segments": [{**_HINT, "message": True}]}, "prism.segments[0].message", "integer"),
    ({"segments": [{**_HINT, "part": "0"}]}, "prism.segments[0].part", "integer"),
    ({"segments": [{**_HINT, "id": "x" * 129}]}, "prism.segments[0].id", "128"),
    ({"segments": [{**_HINT, "id": ""}]}, "prism.segments[0].id", "at least 1"),
    ({"segments": [{**_HINT, "where": 1}]}, "prism.segments[0].where", "accepted message, part, kind, id"),
    ({"segments": [_HINT] * 1025}, "prism.segments", "1024"),
]


@pytest.mark.parametrize(("raw", "path", "accepted"), _MISTAKES, ids=[f"{m[1]}-{i}" for i, m in enumerate(_MISTAKES)])
def test_a_mistake_is_named_with_its_path_and_what_is_accepted(raw: object, path: str, accepted: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_prism_field(raw)
    assert refused.value.param == path
    assert path in refused.value.message
    assert accepted in refused.value.message


_MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "a"}]}]


@pytest.mark.parametrize(
    ("hints", "path"),
    [
        ([{"message": 2, "kind": "document"}], "prism.segments[0].message"),
        ([{"message": 1, "part": 1, "kind": "document"}], "prism.segments[0].part"),
        ([{"message": 0, "kind": "document"}] * 2, "prism.segments[1]"),
    ],
)
def test_a_hint_that_names_nothing_or_something_twice_is_refused(hints: list[dict[str, Any]], path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_hints([SegmentHint.model_validate(hint) for hint in hints], _MESSAGES)
    assert refused.value.param == path


def test_a_hint_for_a_prompt_without_messages_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no messages"):
        check_hints([SegmentHint(message=0, kind=SegmentKind.DOCUMENT)], ())


@pytest.mark.parametrize("body", [{"prism": {}}, {"prism": None, "input": "x"}])
def test_elsewhere_the_object_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="no meaning on /v1/embeddings"):
        refuse_prism_field(json.dumps(body).encode(), "/v1/embeddings")


@pytest.mark.parametrize("body", [b'{"input": "\\"prism\\""}', b'["prism"]', b'{"prism"', b"", b'{"a": {"prism": 1}}'])
def test_only_a_top_level_key_is_refused(body: bytes) -> None:
    refuse_prism_field(body, "/v1/embeddings")
