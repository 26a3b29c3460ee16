"""The demand ledger: who waits for, runs with, and lately asked for each segment.

One ledger feeds both decisions, so the queue's order and the tree's eviction see the same numbers. It is pure: it
reads no clock and does nothing by itself.

Demand is kept as bit sets, one bit a request: bit `s` of a segment's *queued* set says that the waiting request in
slot `s` contains it; its *recent* set has a bit for each of the last `window` arrivals. The demand of several
segments together, which is what a path of the tree or an order of documents asks for, is then the intersection of
their sets, exact and a few machine words wide, where counters could only be guessed at.

    slot        0 1 2 3 …          a waiting or running request
    ring place  0 1 … window-1     one of the last arrivals, overwritten in turn
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

Utility = tuple[float, ...]
"""Comparable worth: one weighted sum, or (active, predicted, queued) where compared class by class."""


class Demand(NamedTuple):
    """How many requests want a segment, or a set of segments together."""

    queued: int
    active: int
    predicted: int


class DemandSets(NamedTuple):
    """The same as bit sets; `a.joint(b)` are the requests that want both."""

    queued: int
    active: int
    recent: int

    def joint(self, other: DemandSets) -> DemandSets:
        return DemandSets(self.queued & other.queued, self.active & other.active, self.recent & other.recent)

    def counts(self) -> Demand:
        return Demand(self.queued.bit_count(), self.active.bit_count(), self.recent.bit_count())


NOBODY = DemandSets(0, 0, 0)
EVERYBODY = DemandSets(-1, -1, -1)
"""Neutral element of `joint`. It has no counts: intersect it with a segment first."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What a use is worth by the class of demand it comes from; strictly active > predicted > queued."""

    active: float = 100.0
    predicted: float = 10.0
    queued: float = 1.0
    lexicographic: bool = False

    def utility(self, active: float, predicted: float, queued: float) -> Utility:
        """Weighted sum of the three counts, or the counts themselves in the weights' order."""
        if self.lexicographic:
            return (active, predicted, queued)
        return (self.active * active + self.predicted * predicted + self.queued * queued,)

    def of(self, demand: Demand) -> Utility:
        return self.utility(demand.active, demand.predicted, demand.queued)


class _Wants:
    """The bit sets of one group."""

    __slots__ = ("active", "queued", "recent")

    def __init__(self) -> None:
        self.queued = 0
        self.active = 0
        self.recent = 0


class _Membership:
    __slots__ = ("groups", "slot", "waiting")

    def __init__(self, slot: int, groups: tuple[bytes, ...]) -> None:
        self.slot = slot
        self.groups = groups
        self.waiting = True


class DemandLedger:
    """Queued, active and predicted demand of every segment that somebody wants.

    Groups are the keys under which segments are counted (see `Segment.group`); they carry the tenant and the adapter
    in their digest, so one tenant's demand can't be another's.

    Args:
        window: how many arrivals predict the next ones.
    """

    _FREQUENCY_TABLE = 1 << 16

    def __init__(self, window: int = 1024) -> None:
        self.window = window
        self.epoch = 0
        """Grows with every change; a memo made at an equal epoch is still right."""
        self.arrivals = 0
        self._wants: dict[bytes, _Wants] = {}
        self._ring: list[tuple[bytes, ...]] = [()] * window
        self._members: dict[str, _Membership] = {}
        self._free_slots: list[int] = []
        self._slots = 0
        self._frequency: dict[bytes, tuple[float, int]] = {}

    def __len__(self) -> int:
        """Requests that wait or run."""
        return len(self._members)

    def arrive(self, request: str, groups: Iterable[bytes]) -> None:
        """A request that contains these segments begins to wait.

        Raises:
            ValueError: it is here already.
        """
        if request in self._members:
            raise ValueError(f"request {request} arrived twice")
        member = _Membership(self._take_slot(), tuple(dict.fromkeys(groups)))
        self._members[request] = member
        bit = 1 << member.slot
        for wants in self._of(member.groups):
            wants.queued |= bit
        self._remember(member.groups)
        self.epoch += 1

    def admit(self, request: str) -> None:
        """It runs from now on; a preempted request stays active. Unknown requests are ignored."""
        member = self._members.get(request)
        if member is None or not member.waiting:
            return
        member.waiting = False
        bit = 1 << member.slot
        for wants in self._of(member.groups):
            wants.queued &= ~bit
            wants.active |= bit
        self.epoch += 1

    def leave(self, request: str) -> None:
        """It is finished, failed or given up. Unknown requests are ignored."""
        member = self._members.pop(request, None)
        if member is None:
            return
        keep = ~(1 << member.slot)
        for wants in self._of(member.groups):
            wants.queued &= keep
            wants.active &= keep
        self._drop_unwanted(member.groups)
        heapq.heappush(self._free_slots, member.slot)
        self.epoch += 1

    def slot(self, request: str) -> int:
        """Its place in the bit sets while it waits or runs.

        Raises:
            KeyError: it is not here.
        """
        return self._members[request].slot

    def sets(self, group: bytes) -> DemandSets:
        """The requests that want one segment."""
        wants = self._wants.get(group)
        return DemandSets(wants.queued, wants.active, wants.recent) if wants is not None else NOBODY

    def demand(self, group: bytes) -> Demand:
        return self.sets(group).counts()

    def joint(self, groups: Iterable[bytes]) -> DemandSets:
        """The requests that want all of these segments; nobody for no segment."""
        queued = active = recent = -1
        for group in groups:
            wants = self._wants.get(group)
            if wants is None:
                return NOBODY
            queued &= wants.queued
            active &= wants.active
            recent &= wants.recent
        # No group at all leaves the neutral element, whose sets are negative.
        return DemandSets(queued, active, recent) if recent >= 0 else NOBODY

    def frequency(self, group: bytes) -> float:
        """Uses of a segment, each halved with every `window` arrivals since: memory beyond the window."""
        value, at = self._frequency.get(group, (0.0, 0))
        return value * self._decay(at)

    def resize(self, window: int) -> None:
        """Predict from another number of arrivals; the newest ones are kept. Nothing that waits or runs changes."""
        if window == self.window:
            return
        oldest = max(0, self.arrivals - min(window, self.window))
        kept = [self._ring[number % self.window] for number in range(oldest, self.arrivals)]
        self.window = window
        self._ring = [()] * window
        for wants in self._wants.values():
            wants.recent = 0
        for number, groups in enumerate(kept, oldest):
            self._ring[number % window] = groups
            self._mark_recent(groups, number % window)
        self._drop_unwanted(list(self._wants))
        self.epoch += 1

    def _remember(self, groups: tuple[bytes, ...]) -> None:
        place = self.arrivals % self.window
        keep = ~(1 << place)
        for wants in self._of(self._ring[place]):
            wants.recent &= keep
        self._drop_unwanted(self._ring[place])
        self._ring[place] = groups
        self._mark_recent(groups, place)
        for group in groups:
            value, at = self._frequency.get(group, (0.0, 0))
            self._frequency[group] = (value * self._decay(at) + 1.0, self.arrivals)
        self.arrivals += 1
        if len(self._frequency) > self._FREQUENCY_TABLE:
            self._forget_rare()

    def _mark_recent(self, groups: Iterable[bytes], place: int) -> None:
        bit = 1 << place
        for wants in self._of(groups):
            wants.recent |= bit

    def _of(self, groups: Iterable[bytes]) -> Iterator[_Wants]:
        for group in groups:
            wants = self._wants.get(group)
            if wants is None:
                wants = self._wants[group] = _Wants()
            yield wants

    def _drop_unwanted(self, groups: Iterable[bytes]) -> None:
        for group in groups:
            wants = self._wants.get(group)
            if wants is not None and not (wants.queued or wants.active or wants.recent):
                del self._wants[group]

    def _decay(self, since: int) -> float:
        return float(0.5 ** ((self.arrivals - since) / self.window))

    def _forget_rare(self) -> None:
        # Half at once, so that a full table costs a sort only every 32,768 new segments.
        keep = heapq.nlargest(self._FREQUENCY_TABLE // 2, self._frequency, key=self.frequency)
        self._frequency = {group: self._frequency[group] for group in keep}

    def _take_slot(self) -> int:
        # The lowest free slot, so that the sets stay as narrow as the number of requests at hand.
        if self._free_slots:
            return heapq.heappop(self._free_slots)
        self._slots += 1
        return self._slots - 1
