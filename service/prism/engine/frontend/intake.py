"""How much waits to be admitted, and whether more may come in: the settings' `limits`.

A request waits from its arrival until the engine admits it, whatever it spends that time on. What each HTTP request
adds to the two totals is kept under that request, so the totals are always the sum of what is kept:

    arrived           1 request, no tokens            checked before its body is read
    rendered          n requests, their tokens        checked before the engine hears of it
    admitted, each    1 request and its tokens less
    left              nothing, however it ended

One bound alone never refuses for good: a request larger than a bound is taken when nothing else waits.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from prism.config.schema import Limits
from prism.errors import RequestRefused
from prism.telemetry.log import event

_logger = logging.getLogger(__name__)

RATE_WINDOW_SECONDS = 30.0
"""Admissions of this long say how fast the queue moves."""

LONGEST_RETRY_AFTER_SECONDS = 60

CALM_SECONDS = 10.0
"""An overload is over when nothing was refused for this long."""


@dataclass(slots=True)
class _Share:
    """What one HTTP request adds: what is still to be handed to the engine, and what the engine has not admitted."""

    requests: int = 1
    tokens: int = 0
    rendered: bool = False
    queued: dict[str, int] = field(default_factory=dict)

    @property
    def total_requests(self) -> int:
        return self.requests + len(self.queued)

    @property
    def total_tokens(self) -> int:
        return self.tokens + sum(self.queued.values())


class AdmissionRate:
    """How many requests a second the engine has been admitting.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._seconds: deque[list[float]] = deque()
        self._count = 0

    def admitted(self) -> None:
        second = math.floor(self._clock())
        if not self._seconds or self._seconds[-1][0] != second:
            self._forget()
            self._seconds.append([second, 0])
        self._seconds[-1][1] += 1
        self._count += 1

    def per_second(self) -> float:
        """Over the last half minute, or since the start; 0 if nothing was admitted."""
        self._forget()
        return self._count / min(RATE_WINDOW_SECONDS, max(1.0, self._clock() - self._since))

    def _forget(self) -> None:
        oldest = self._clock() - RATE_WINDOW_SECONDS
        while self._seconds and self._seconds[0][0] < oldest:
            self._count -= int(self._seconds.popleft()[1])


class Intake:
    """Counts what waits, and refuses what goes beyond the limits in force.

    Args:
        limits: asked with each request, so that a change counts from the next one on.
        clock: monotonic seconds.

    Attributes:
        requests: engine requests that wait now.
        tokens: their prompt tokens, as far as they are known.
    """

    def __init__(self, limits: Callable[[], Limits] = Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.requests = 0
        self.tokens = 0
        self._limits = limits
        self._clock = clock
        self._shares: dict[Hashable, _Share] = {}
        self._rate = AdmissionRate(clock)
        self._next_slot = 0.0
        self._overload: _Overload | None = None

    def arrived(self, request: Hashable) -> None:
        """A request has come; its body is unread.

        Raises:
            RequestRefused: as many as may wait already do.
        """
        bound = self._limits().max_waiting_requests
        if bound and self.requests >= bound:
            raise self._refusal("queue_full", f"{bound} requests are waiting (limits.maxWaitingRequests)")
        self._shares[request] = _Share()
        self.requests += 1

    def rendered(self, request: Hashable, prompts: Iterable[int], copies: int = 1) -> None:
        """Some of its prompts were tokenised; `copies` requests of each go to the engine.

        Raises:
            RequestRefused: with them, more would wait than may.
        """
        share = self._shares.get(request)
        if share is None:
            return
        lengths = list(prompts)
        more = len(lengths) * copies - (0 if share.rendered else 1)
        tokens = sum(lengths) * copies
        self._check(share, more, tokens)
        share.rendered = True
        share.requests += more
        share.tokens += tokens
        self.requests += more
        self.tokens += tokens

    def handed_over(self, request: Hashable, name: str, tokens: int) -> None:
        """One engine request goes to the engine under this name.

        Raises:
            RequestRefused: it was not announced by `rendered`, and with it more would wait than may.
        """
        share = self._shares.get(request)
        if share is None or name in share.queued:
            return
        if not share.rendered:
            self._check(share, 1 - share.requests, tokens)
        expected, expected_tokens = min(1, share.requests), min(tokens, share.tokens)
        share.requests -= expected
        share.tokens -= expected_tokens
        share.queued[name] = tokens
        self.requests += 1 - expected
        self.tokens += tokens - expected_tokens

    def admitted(self, request: Hashable, name: str) -> None:
        """The engine has admitted one, or is done with it; further calls change nothing."""
        share = self._shares.get(request)
        if share is None or name not in share.queued:
            return
        self.requests -= 1
        self.tokens -= share.queued.pop(name)
        self._rate.admitted()

    def left(self, request: Hashable) -> None:
        """The HTTP request has ended; further calls change nothing."""
        share = self._shares.pop(request, None)
        if share is not None:
            self.requests -= share.total_requests
            self.tokens -= share.total_tokens

    def look(self) -> None:
        """Says when an overload is over; called every second or so."""
        over = self._overload
        if over is not None and self._clock() - over.last_at >= CALM_SECONDS:
            self._overload = None
            _logger.info(
                "Overload is over.",
                extra=event("overload_ends", refused=over.refused, seconds=round(over.last_at - over.since)),
            )

    def _check(self, share: _Share, more: int, tokens: int) -> None:
        limits = self._limits()
        if self.requests == share.total_requests:
            return  # nothing else waits
        bound = limits.max_waiting_requests
        if bound and more > 0 and self.requests + more > bound:
            what = f"{self.requests + more} requests would wait, {bound} may (limits.maxWaitingRequests)"
            raise self._refusal("queue_full", what)
        bound = limits.max_waiting_prompt_tokens
        if bound and self.tokens + tokens > bound:
            what = f"{self.tokens + tokens} prompt tokens would wait, {bound} may (limits.maxWaitingPromptTokens)"
            raise self._refusal("prompt_tokens_full", what)

    def _refusal(self, reason: str, what: str) -> RequestRefused:
        wait = self._retry_after_s()
        self._note_overload(reason)
        text = f"The service is at its limit: {what}; try again in {wait} s."
        return RequestRefused(text, status=429, reason=reason, retry_after_s=wait)

    def _retry_after_s(self) -> int:
        """When there would be room, if those refused before come back first.

        Each refused request takes the next place in an imaginary queue that moves at the measured rate, so clients
        that obey come back no faster than they can be served.
        """
        rate = self._rate.per_second()
        if not rate:
            return int(RATE_WINDOW_SECONDS)
        now = self._clock()
        self._next_slot = min(max(self._next_slot, now) + 1 / rate, now + LONGEST_RETRY_AFTER_SECONDS)
        return max(1, math.ceil(self._next_slot - now))

    def _note_overload(self, reason: str) -> None:
        now = self._clock()
        if self._overload is None:
            self._overload = _Overload(now)
            _logger.warning(
                "Overload: requests are refused with 429.",
                extra=event(
                    "overload_begins",
                    reason=reason,
                    waiting=self.requests,
                    waiting_tokens=self.tokens,
                    admitted_per_second=round(self._rate.per_second(), 1),
                ),
            )
        self._overload.refused += 1
        self._overload.last_at = now


@dataclass(slots=True)
class _Overload:
    since: float
    last_at: float = 0.0
    refused: int = 0
