"""What a caller got wrong, answered as such by all of vLLM's handlers.

vLLM checks most of a body by its types, and answers 400 for what fails there. Some of what passes makes its code
stumble later: an input item without a role, a number that no message to EngineCore can hold. Such a request would get
500 and, with it, a closed connection and a stack trace, though nothing is wrong with the server. What stumbles before
the engine has heard of the request is therefore answered with 400, unless it was PRISM's own code.
"""

from __future__ import annotations

import logging
from types import FrameType

from fastapi import FastAPI
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp
from vllm.exceptions import VLLMValidationError

from prism.engine.frontend.desk import CURRENT
from prism.engine.frontend.sse import error_body
from prism.errors import IncompatibleEngine, InvalidRequest
from prism.telemetry.log import event

_logger = logging.getLogger(__name__)

STUMBLES = (AttributeError, LookupError, AssertionError, RecursionError)
"""What code raises that took a value for something else. `ValueError` and `TypeError` are 400 in vLLM itself."""

_told: set[str] = set()


class RefusedRequest(InvalidRequest, VLLMValidationError):
    """A caller's mistake, as an exception that all of vLLM's handlers answer with 400 and an OpenAI error object."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.parameter = param

    def __str__(self) -> str:
        return self.message


def unreadable(error: Exception) -> Exception:
    """What to raise for what code stumbled over: a refusal, or the error itself where the code was PRISM's."""
    place = _place(error)
    if place.startswith("prism."):
        return error
    _tell_once(error, place)
    return RefusedRequest(
        f"The request could not be read: {_what(error)}. Check the fields and types of its parts against the API's "
        "description."
    )


def refuse_stumbles(app: FastAPI) -> None:
    """Have vLLM's application answer stumbles with 400 where the engine has not heard of the request."""
    handlers = app if app.middleware_stack is None else _exception_layer(app.middleware_stack)
    for kind in STUMBLES:
        handlers.add_exception_handler(kind, _answer)


def _exception_layer(stack: ASGIApp) -> ExceptionMiddleware:
    """The layer that holds the handlers, once they were built into the application.

    Building it again would count no HTTP request any more: the metrics of the first one are registered already.
    """
    layer: object = stack
    while not isinstance(layer, ExceptionMiddleware):
        layer = getattr(layer, "app", None)
        if layer is None:
            raise IncompatibleEngine("vLLM's application has no ExceptionMiddleware: PRISM needs vLLM 0.28.")
    return layer


async def _answer(_: Request, error: Exception) -> Response:
    live = CURRENT.get()
    refusal = error if live is not None and live.names else unreadable(error)
    if not isinstance(refusal, RefusedRequest):
        raise refusal
    return Response(error_body(refusal), refusal.status, media_type="application/json")


def _what(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return str(error) or type(error).__name__


def _place(error: Exception) -> str:
    """Module and line that raised."""
    step, frame, line = error.__traceback__, None, 0
    while step is not None:
        frame, line, step = step.tb_frame, step.tb_lineno, step.tb_next
    return f"{_module(frame)}:{line}"


def _module(frame: FrameType | None) -> str:
    return str(frame.f_globals.get("__name__", "?")) if frame is not None else "?"


def _tell_once(error: Exception, place: str) -> None:
    """A line for each place in the code, whatever is sent there: those who sent it know already."""
    if place not in _told:
        _told.add(place)
        words = event("unreadable_request", error=type(error).__name__, at=place)
        _logger.info("A request that vLLM's code stumbles over is refused; told once for each place.", extra=words)
