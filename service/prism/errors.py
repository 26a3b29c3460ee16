"""What can go wrong, by who must act.

PrismError
├── CallerError          the client changes its request (HTTP 4xx)
│   ├── InvalidRequest       400: a bad `prism` object, a field where it has no meaning
│   └── RequestRefused       429 or 5xx: the same request may succeed later
├── ConfigError          the author of the settings document changes it
│   ├── InvalidDocument      not YAML, not this schema, too large
│   └── MissingDocument      the file is gone after it had been read
└── DeploymentError      whoever deploys changes arguments, versions or the machine
    ├── UnsupportedArgument  an argument PRISM refuses at start, with the reason
    ├── IncompatibleEngine   the installed vLLM lacks a name that PRISM builds on
    └── UnansweredQuestion   a running predictor does not say what `prism top` or `prism explain` asks
"""


class PrismError(Exception):
    """Root of all errors that PRISM raises on purpose. The message is one sentence that says what to do."""


class CallerError(PrismError):
    """The client must act."""

    status = 400
    type = "BadRequestError"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidRequest(CallerError):
    """The request can never succeed as it is."""


_REFUSAL_TYPES = {
    408: "RequestTimeoutError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
    504: "DeadlineExceededError",
}


class RequestRefused(CallerError):
    """The request may succeed later.

    Args:
        message: what happened and what to do.
        status: 408, 429, 500, 503 or 504.
        reason: a short machine word for traces and metrics.
        retry_after_s: a fair time to wait, in seconds.
    """

    def __init__(self, message: str, *, status: int, reason: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.type = _REFUSAL_TYPES[status]
        self.reason = reason
        self.retry_after_s = retry_after_s


class ConfigError(PrismError):
    """The author of the settings must act. `reason` is a short machine word for status and metrics."""

    reason = "invalid"


class InvalidDocument(ConfigError):
    """The document is not one that this version understands."""

    def __init__(self, message: str, *, reason: str = "invalid") -> None:
        super().__init__(message)
        self.reason = reason


class MissingDocument(ConfigError):
    """The document was there and is gone."""

    reason = "missing"


class DeploymentError(PrismError):
    """Whoever deploys must act; the process does not start."""


class UnsupportedArgument(DeploymentError):
    """An argument that PRISM cannot honour; the message says why."""


class IncompatibleEngine(DeploymentError):
    """The installed vLLM is not one that this version of PRISM was made for."""


class UnansweredQuestion(DeploymentError):
    """A predictor that is asked about itself does not answer, or has no answer."""
