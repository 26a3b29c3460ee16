"""The log: one line for each event that a person should know.

An event's line begins with a sentence and ends with its machine words, `event=…` first:

    WARNING 11-30 03:12:45 [prism] Overload: requests are refused with 429. event=overload_begins waiting=2048 …

or is one JSON object with the same words as keys. Neither holds a word of any prompt.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

_KEY: Final = "prism_event"


class LogFormat(StrEnum):
    """How a line is written."""

    TEXT = "text"
    JSON = "json"


def event(name: str, **values: object) -> dict[str, Any]:
    """The machine words of a log line, for `extra`: the event's name and what belongs to it; None is left out."""
    return {_KEY: {"event": name, **{key: value for key, value in values.items() if value is not None}}}


def start_log(level: str, form: LogFormat = LogFormat.TEXT) -> None:
    """Write PRISM's own lines to standard error, unless whoever embeds it has given its logger a handler."""
    logger = logging.getLogger("prism")
    if logger.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLine() if form is LogFormat.JSON else _TextLine())
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False


def words_of(record: logging.LogRecord) -> Mapping[str, object]:
    """The machine words of a line; none if it tells no event."""
    words: Mapping[str, object] = getattr(record, _KEY, {})
    return words


class _TextLine(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(levelname)s %(asctime)s [prism] %(message)s", "%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the base class has it so
        words = "".join(f" {key}={_plain(value)}" for key, value in words_of(record).items())
        return super().formatMessage(record) + words


class JsonLine(logging.Formatter):
    """One JSON object: time, level, logger, message, and the words that `extra` put under `key`."""

    def __init__(self, key: str = _KEY) -> None:
        super().__init__()
        self._key = key

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, self._key, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _plain(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(mark in text for mark in ' "=\n') else text
