"""What a streamed answer's chunks say: which one carries the first content, and which one the usage.

Each of vLLM's streams is server-sent events with a JSON object in `data:`. Events are read only until the first one
with content was found; after that a chunk costs two substring searches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from prism.errors import CallerError

_USAGE = b'"usage":{'
_NO_CHOICES = b'"choices":[]'
_FINISH = re.compile(rb'"finish_reason":\s*"(\w+)"')
_ERRORS = (b'data: {"error":', b'data: {"type":"error"')


def chat_content(event: dict[str, Any]) -> int | None:
    """Index of the first choice of a chat chunk that carries content, reasoning, a tool call or log-probabilities."""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        texts = (delta.get("content"), delta.get("reasoning"), delta.get("reasoning_content"), delta.get("refusal"))
        if any(texts) or delta.get("tool_calls") or _has_logprobs(choice):
            return int(choice.get("index", 0))
    return None


def completion_content(event: dict[str, Any]) -> int | None:
    """The same of a completion chunk."""
    for choice in event.get("choices") or ():
        if choice.get("text") or _has_logprobs(choice):
            return int(choice.get("index", 0))
    return None


def generate_content(event: dict[str, Any]) -> int | None:
    """The same of a chunk of `/inference/v1/generate`, whose content is token ids."""
    for choice in event.get("choices") or ():
        if choice.get("token_ids"):
            return int(choice.get("index", 0))
    return completion_content(event)


def invocation_content(event: dict[str, Any]) -> int | None:
    """The same of a chunk of `/invocations`, which answers as the route that its body belongs to."""
    found = chat_content(event)
    return completion_content(event) if found is None else found


def responses_content(event: dict[str, Any]) -> int | None:
    """The same of an event of the responses API, all of whose contents come as deltas."""
    return 0 if str(event.get("type", "")).endswith(".delta") and event.get("delta") else None


def messages_content(event: dict[str, Any]) -> int | None:
    """The same of an event of the messages API."""
    if event.get("type") != "content_block_delta":
        return None
    delta = event.get("delta") or {}
    return 0 if any(delta.get(key) for key in ("text", "thinking", "partial_json")) else None


ContentOf = Callable[[dict[str, Any]], int | None]


def _has_logprobs(choice: dict[str, Any]) -> bool:
    logprobs = choice.get("logprobs")
    # A chat choice holds a list under `content`, a completion parallel lists.
    return bool(logprobs and (logprobs.get("content") or logprobs.get("tokens")))


class StreamWatch:
    """Reads one stream as it goes by.

    Args:
        content_of: tells whether one event of this route carries content.
    """

    def __init__(self, content_of: ContentOf) -> None:
        self.first_choice: int | None = None
        self.failed = False
        self.finish_reasons: list[str] = []
        self._content_of = content_of
        self._rest = b""

    def look(self, body: bytes) -> bool:
        """Whether `body` carries the first content of the stream."""
        self._note_end(body)
        if self.first_choice is not None:
            return False
        events, self._rest = _whole_events(self._rest + body)
        for event in events:
            self.first_choice = self._content_of(event)
            if self.first_choice is not None:
                self._rest = b""
                return True
        return False

    def _note_end(self, body: bytes) -> None:
        if b'"finish_reason":"' in body:
            self.finish_reasons += finish_reasons(body)
        if any(mark in body for mark in _ERRORS):
            self.failed = True


def error_events(error: CallerError) -> bytes:
    """The end of a begun chat or completion stream that can't go on."""
    return b"data: " + error_body(error) + b"\n\ndata: [DONE]\n\n"


def responses_error_events(error: CallerError) -> bytes:
    """The same of the responses API."""
    event = {"type": "error", "code": str(error.status), "message": error.message, "param": error.param}
    return b"event: error\ndata: " + _compact(event) + b"\n\n"


def messages_error_events(error: CallerError) -> bytes:
    """The same of the messages API."""
    kind = "overloaded_error" if error.status == HTTPStatus.SERVICE_UNAVAILABLE else "api_error"
    event = {"type": "error", "error": {"type": kind, "message": error.message}}
    return b"event: error\ndata: " + _compact(event) + b"\n\n"


ErrorEvents = Callable[[CallerError], bytes]


def error_body(error: CallerError) -> bytes:
    """An error object in OpenAI's form."""
    fields = {"message": error.message, "type": error.type, "param": error.param, "code": error.status}
    return json.dumps({"error": fields}).encode()


def _compact(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()


def finish_reasons(body: bytes) -> list[str]:
    """The finish reasons in an answer or a chunk (in a JSON string the quotes would be escaped)."""
    return [reason.decode() for reason in _FINISH.findall(body)]


def is_usage_chunk(body: bytes) -> bool:
    """Whether this is the chunk that holds the usage of the whole stream, which only comes when it was asked for."""
    return _USAGE in body and _NO_CHOICES in body


def with_field(body: bytes, name: str, value: object) -> bytes:
    """The chunk with one more field in its usage event; unchanged if there is none."""
    lines = body.split(b"\n")
    for number, line in enumerate(lines):
        if line.startswith(b"data: {") and is_usage_chunk(line):
            event = json.loads(line[len(b"data: ") :])
            event[name] = value
            lines[number] = b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    return b"\n".join(lines)


def _whole_events(data: bytes) -> tuple[Iterator[dict[str, Any]], bytes]:
    whole, separator, rest = data.rpartition(b"\n\n")
    return _events(whole + separator), rest


def _events(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.split(b"\n"):
        if line.startswith(b"data: {"):
            event = json.loads(line[len(b"data: ") :])
            if isinstance(event, dict):
                yield event
