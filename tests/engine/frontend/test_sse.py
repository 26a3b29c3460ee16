"""Which chunk of a stream carries the first content, and which one the usage."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prism.engine.frontend.sse import (
    StreamWatch,
    chat_content,
    completion_content,
    generate_content,
    invocation_content,
    is_usage_chunk,
    messages_content,
    responses_content,
    with_field,
)


def chunk(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def delta(index: int = 0, logprobs: object = None, **fields: object) -> bytes:
    return chunk(choices=[{"index": index, "delta": fields, "logprobs": logprobs, "finish_reason": None}])


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "a"},
        {"reasoning": "a"},
        {"reasoning_content": "a"},
        {"tool_calls": [{"index": 0}]},
        {"content": "", "logprobs": {"content": [{"token": "a"}]}},
    ],
)
def test_what_counts_as_content_of_a_chat_chunk(fields: dict[str, Any]) -> None:
    assert StreamWatch(chat_content).look(delta(**fields))


@pytest.mark.parametrize("fields", [{"role": "assistant", "content": ""}, {}, {"content": None}])
def test_what_does_not_count(fields: dict[str, Any]) -> None:
    assert not StreamWatch(chat_content).look(delta(**fields))


def test_only_the_first_content_is_found() -> None:
    watch = StreamWatch(chat_content)
    found = [watch.look(delta(content=text)) for text in ("", "a", "b")]
    assert found == [False, True, False]


def test_the_choice_that_spoke_first_is_known() -> None:
    watch = StreamWatch(chat_content)
    watch.look(delta(index=2, content="a"))
    assert watch.first_choice == 2


def test_an_event_cut_in_two_is_read_whole() -> None:
    watch, whole = StreamWatch(completion_content), chunk(choices=[{"index": 0, "text": "a"}])
    assert [watch.look(whole[:20]), watch.look(whole[20:])] == [False, True]


@pytest.mark.parametrize("fields", [{"token_ids": [5]}, {"text": "a"}, {"logprobs": {"tokens": ["a"]}}])
def test_token_ids_are_content_where_there_is_no_text(fields: dict[str, Any]) -> None:
    assert not StreamWatch(generate_content).look(chunk(choices=[{"index": 0, "token_ids": []}]))
    assert StreamWatch(generate_content).look(chunk(choices=[{"index": 0, **fields}]))


@pytest.mark.parametrize("choice", [{"delta": {"content": "a"}}, {"text": "a"}])
def test_an_invocation_answers_as_a_chat_or_as_a_completion(choice: dict[str, Any]) -> None:
    assert StreamWatch(invocation_content).look(chunk(choices=[{"index": 0, **choice}]))
    assert not StreamWatch(invocation_content).look(chunk(choices=[{"index": 0, "delta": {"role": "assistant"}}]))


def test_the_responses_api_speaks_in_deltas() -> None:
    assert responses_content({"type": "response.output_text.delta", "delta": "a"}) == 0
    assert responses_content({"type": "response.created"}) is None


def test_the_messages_api_speaks_in_content_block_deltas() -> None:
    assert messages_content({"type": "content_block_delta", "delta": {"text": "a"}}) == 0
    assert messages_content({"type": "content_block_start", "content_block": {"text": ""}}) is None


def test_finish_reasons_and_errors_are_noted() -> None:
    watch = StreamWatch(chat_content)
    watch.look(chunk(choices=[{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]))
    watch.look(chunk(error={"message": "gone"}))
    assert (watch.finish_reasons, watch.failed) == (["stop"], True)


def test_the_usage_chunk_gets_a_field_and_nothing_else_changes() -> None:
    usage = chunk(choices=[], usage={"prompt_tokens": 1})
    done = with_field(usage + b"data: [DONE]\n\n", "prism", {"lane": "hot"})
    first, rest = done.split(b"\n\n", 1)
    assert json.loads(first[6:]) == {"choices": [], "usage": {"prompt_tokens": 1}, "prism": {"lane": "hot"}}
    assert rest == b"data: [DONE]\n\n"


def test_an_answer_that_quotes_a_usage_chunk_is_no_usage_chunk() -> None:
    assert not is_usage_chunk(delta(content='"choices":[],"usage":{}'))
