"""What can go wrong with the API server, by what helps.

PrismError
└── ApiError           the API server said no, or nothing
    ├── Missing            404: the object, or its whole kind, is not there
    ├── Outdated           410, or 409: what was known is too old, look again
    ├── Forbidden          403: a verb is missing in the operator's role
    ├── Terminating        the namespace is on its way out: nothing can be made in it, and nothing need be
    ├── Refused            400, 413, 422: the object can never be taken as it is
    └── Unavailable        no connection, 429, 5xx: the same call may succeed later
"""

from __future__ import annotations

import json

from prism.errors import PrismError


class ApiError(PrismError):
    """The API server did not do what was asked; `status` is HTTP's, 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Missing(ApiError):
    """There is no such object, or no such kind."""


class Outdated(ApiError):
    """The version that the call was based on is not the current one."""


class Forbidden(ApiError):
    """The operator's role lacks a verb."""


class Terminating(ApiError):
    """The namespace is being deleted."""


class Refused(ApiError):
    """The API server takes no such object."""


class Unavailable(ApiError):
    """No answer, or none yet."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: Refused, 401: Unavailable, 403: Forbidden, 404: Missing, 409: Outdated, 410: Outdated, 413: Refused,
    422: Refused, 429: Unavailable,
}  # fmt: skip


def api_error(what: str, status: int, body: bytes | str) -> ApiError:
    """The error behind an answer; `what` was asked."""
    said, cause = _said(body)
    kind = Unavailable if status == 0 or status >= 500 else _BY_STATUS.get(status, ApiError)
    if cause == "NamespaceTerminating":
        kind = Terminating
    return kind(f"{what}: {status or 'no answer'}: {said}", status)


def _said(body: bytes | str) -> tuple[str, str]:
    """The sentence of a Status object, and the first of its causes."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        text = body.decode(errors="replace") if isinstance(body, bytes) else body
        return text[:200].strip() or "no reason given", ""
    causes = (answer.get("details") or {}).get("causes") or [{}]
    return str(answer.get("message", "no reason given")), str(causes[0].get("reason", ""))
