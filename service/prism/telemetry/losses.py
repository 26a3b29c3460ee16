"""Says in the log when spans are being lost, and when they get through again; not once for each of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from prism.telemetry.log import event

_logger = logging.getLogger(__name__)

REPEAT_SECONDS = 60.0
"""While spans go on being lost, how often that is said; and how long none must be lost for it to be over."""


class LossLog:
    """Watches the counts of spans; `look` is called every second or so.

    Args:
        counts: spans so far, by `exported`, `dropped` and `failed`.
        clock: monotonic seconds.
    """

    def __init__(self, counts: Callable[[], Mapping[str, int]], clock: Callable[[], float] = time.monotonic) -> None:
        self._counts = counts
        self._clock = clock
        self._seen = 0
        self._losing = False
        self._lost_at = self._said_at = float("-inf")

    def look(self) -> None:
        counts, now = self._counts(), self._clock()
        lost = counts["dropped"] + counts["failed"]
        if lost > self._seen:
            self._seen, self._lost_at = lost, now
            if now - self._said_at >= REPEAT_SECONDS:
                self._losing, self._said_at = True, now
                _logger.warning(
                    "Spans are being lost: the collector does not take them. Requests are served as before.",
                    extra=event("spans_lost", **counts),
                )
        elif self._losing and now - self._lost_at >= REPEAT_SECONDS:
            self._losing = False
            _logger.info("No more spans are being lost.", extra=event("spans_lost_ends", **counts))
