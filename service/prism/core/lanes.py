"""The cold lane: how often, and after how long, the oldest waiting request goes first.

The rules, for the waiting requests of one priority:

- with quota q > 0, of every 1/q admissions one is kept for the oldest: at most ceil(1/q) − 1 admissions in a row
  pass it;
- its clock starts at the first admission that passes it; `max_wait_seconds` later it is overdue, and every admission
  goes to it until it is gone;
- an admission of the oldest passes nobody, whoever chose it.

Times are given; nothing here reads a clock.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

_PARTS = 1_000_000
"""The quota is counted in millionths, so that sums of it are exact."""


@dataclass(frozen=True, slots=True)
class ColdLane:
    """Settings of the cold lane.

    Attributes:
        quota: share of admissions kept for the oldest request, 0 to 1; 0 keeps none and bounds nothing.
        max_wait_seconds: how long a passed request waits before it is overdue; not used at quota 0.
    """

    quota: float = 0.1
    max_wait_seconds: float = 10.0

    @property
    def longest_run(self) -> int | None:
        """Most admissions in a row that pass the oldest request; None without a bound."""
        return math.ceil(1 / self.quota - 1e-9) - 1 if self.quota > 0 else None


class LaneLedger:
    """Who has passed whom, for the requests of one priority. Requests are named by their arrival number."""

    def __init__(self, lane: ColdLane) -> None:
        self.lane = lane
        self._passed: int | None = None
        self._times = 0
        self._credit = 0
        self._passed_by: list[int] = []
        self._passed_at: list[float] = []

    def passed_in_a_row(self, oldest: int) -> int:
        """Admissions in a row that have passed this request while it was the oldest."""
        return self._times if self._passed == oldest else 0

    def is_due(self) -> bool:
        """The next admission belongs to the oldest request by quota."""
        return self._share > 0 and self._credit + self._share >= _PARTS

    def passes_left(self) -> float:
        """Admissions that may still pass the oldest request before the next one is its own by quota."""
        return max(0, -((self._credit - _PARTS) // self._share) - 1) if self._share > 0 else math.inf

    def is_overdue(self, number: int, now: float) -> bool:
        """The request has waited `max_wait_seconds` since it was first passed."""
        if self._share <= 0:
            return False
        since = self.first_passed_at(number)
        return since is not None and now - since >= self.lane.max_wait_seconds

    def first_passed_at(self, number: int) -> float | None:
        """When a younger request was first admitted while this one waited."""
        # The first admission of a younger one, in time, is also the first in the list: both ascend.
        at = bisect_right(self._passed_by, number)
        return self._passed_at[at] if at < len(self._passed_at) else None

    def admitted(self, number: int, oldest: int, by_lane: bool, now: float) -> None:
        """A request was admitted while `oldest` was the oldest one waiting (itself, perhaps)."""
        if number == oldest:
            if by_lane:
                self._credit = max(0, self._credit + self._share - _PARTS)
            return
        # Counted for one request: where the oldest gave up, the next one has not been passed by what passed it.
        self._times = self.passed_in_a_row(oldest) + 1
        self._passed = oldest
        self._credit = min(self._credit + self._share, _PARTS)
        if not self._passed_by or number > self._passed_by[-1]:
            self._passed_by.append(number)
            self._passed_at.append(now)

    def forget_before(self, number: int) -> None:
        """No request older than this waits any more."""
        drop = bisect_right(self._passed_by, number)
        if drop > 64:
            del self._passed_by[:drop], self._passed_at[:drop]

    def set_lane(self, lane: ColdLane) -> None:
        """Obey other settings from the next admission on; what was counted stays counted."""
        self.lane = lane

    @property
    def _share(self) -> int:
        return min(_PARTS, math.ceil(self.lane.quota * _PARTS))
