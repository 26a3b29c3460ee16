"""Structured logs: one JSON object a line, or plain lines for a person at a terminal."""

from __future__ import annotations

import logging
import sys

from prism.telemetry.log import JsonLine


class JsonLines(JsonLine):
    """The predictor's line, with whatever `extra={"fields": {...}}` adds."""

    def __init__(self) -> None:
        super().__init__("fields")


def start_logging(level: str, form: str) -> None:
    """Logs to standard error; other libraries from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
    handler.setFormatter(JsonLines() if form == "json" else plain)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("prism_operator").setLevel(level.upper())
