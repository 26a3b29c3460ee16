"""The one extension of the API: the top-level `prism` object of a request's body.

Chat, completions, responses and messages take it; everywhere else it is refused, so that nobody believes in a
setting that does nothing. Every mistake names the path of the value and what would be accepted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from prism.core.segments import SegmentKind
from prism.errors import InvalidRequest

FIELD = "prism"
MAX_SEGMENTS = 1024
MAX_ID_CHARS = 128
_KINDS = ", ".join(kind.value for kind in SegmentKind)

RAW_FIELD: ContextVar[object] = ContextVar("prism_field", default=None)
"""The body's `prism` value on routes whose request type drops unknown keys before rendering (`/v1/messages`)."""


class SegmentHint(BaseModel):
    """What the caller says about one message, or one text part of it.

    Attributes:
        message: index into the messages as they are rendered; instructions and system prompts count.
        part: index into the message's content parts; None means the whole message.
        kind: what it is, in place of what PRISM would have taken it for.
        id: groups its demand with that of segments of the same id, within one salt and adapter.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    message: Annotated[int, Field(ge=0)]
    part: Annotated[int, Field(ge=0)] | None = None
    kind: Annotated[SegmentKind, Field(strict=False)]
    id: Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS)] | None = None


class PrismField(BaseModel):
    """The `prism` object of one request.

    Attributes:
        reorder: the documents of this request are an unordered set; None leaves it to the setting.
        segments: overrides of segment kinds.
        deadline_seconds: from arrival; a request without a first chunk by then is ended with 504.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    reorder: bool | None = None
    segments: Annotated[list[SegmentHint], Field(max_length=MAX_SEGMENTS)] = []
    deadline_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


def read_prism_field(request: object) -> PrismField | None:
    """The `prism` object of one of vLLM's request objects; None if it has none.

    Raises:
        InvalidRequest: it is not what this version understands.
    """
    extras: Mapping[str, Any] = getattr(request, "model_extra", None) or {}
    raw = extras.get(FIELD)
    return parse_prism_field(RAW_FIELD.get() if raw is None else raw)


def raw_prism_field(body: bytes) -> object:
    """The `prism` value of a body, for `RAW_FIELD`; None if it has none. Costs one substring search for most."""
    decoded = _object(body)
    return decoded.get(FIELD) if decoded is not None else None


def parse_prism_field(raw: object) -> PrismField | None:
    """The same from the decoded JSON value.

    Raises:
        InvalidRequest: it is not what this version understands.
    """
    if raw is None:
        return None
    if isinstance(raw, PrismField):
        return raw
    try:
        return PrismField.model_validate(raw)
    except ValidationError as error:
        raise _mistake(error.errors(include_url=False)[0]) from None


def check_hints(hints: Sequence[SegmentHint], messages: Sequence[object]) -> None:
    """Each hint must name a message and part that exist, and none twice.

    Raises:
        InvalidRequest: with the path of the first hint that does not.
    """
    seen: set[tuple[int, int | None]] = set()
    for index, hint in enumerate(hints):
        path = f"{FIELD}.segments[{index}]"
        if hint.message >= len(messages):
            accepted = f"0 to {len(messages) - 1}" if messages else "none, since this prompt has no messages"
            raise InvalidRequest(f"{path}.message is {hint.message}: accepted {accepted}.", param=f"{path}.message")
        parts = _part_count(messages[hint.message])
        if hint.part is not None and hint.part >= parts:
            accepted = f"0 to {parts - 1}, or null for the whole message" if parts else "null"
            raise InvalidRequest(f"{path}.part is {hint.part}: accepted {accepted}.", param=f"{path}.part")
        if (hint.message, hint.part) in seen:
            raise InvalidRequest(
                f"{path} names message {hint.message}, part {hint.part} a second time: give each one kind.", param=path
            )
        seen.add((hint.message, hint.part))


def refuse_prism_field(body: bytes | Mapping[str, Any], route: str) -> None:
    """On routes where `prism` means nothing: refuse a body that has it. Costs one substring search for others.

    Raises:
        InvalidRequest: the body is a JSON object with a top-level `prism`.
    """
    found = _object(body) if isinstance(body, bytes) else body
    if found is not None and FIELD in found:
        raise InvalidRequest(
            f"`prism` has no meaning on {route}: remove it. It is understood on /v1/chat/completions, "
            "/v1/completions, /v1/responses and /v1/messages.",
            param=FIELD,
        )


def _object(body: bytes) -> Mapping[str, Any] | None:
    """The JSON object that a body with a `prism` in it is; None for any other body."""
    if b'"prism"' not in body:
        return None
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


def _part_count(message: object) -> int:
    content = message.get("content") if isinstance(message, Mapping) else getattr(message, "content", None)
    if isinstance(content, str):
        return 1
    return len(content) if isinstance(content, Sequence) else 0


def _mistake(detail: ErrorDetails) -> InvalidRequest:
    location = _known(detail["loc"])
    path = FIELD + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return InvalidRequest(f"{path}: {_what(detail)}.", param=path)


def _known(location: Iterable[int | str]) -> list[int | str]:
    """The path without the markers that pydantic adds for unions."""
    return [step for step in location if isinstance(step, int) or step.isidentifier()]


def _what(detail: ErrorDetails) -> str:
    if detail["type"] == "extra_forbidden":
        at_top = len(detail["loc"]) == 1
        fields = PrismField.model_fields if at_top else SegmentHint.model_fields
        return f"unknown field; accepted {', '.join(fields)}"
    if detail["type"] == "enum":
        return f"accepted {_KINDS}"
    if detail["type"] == "model_type":
        return "must be an object"
    return detail["msg"][:1].lower() + detail["msg"][1:]
