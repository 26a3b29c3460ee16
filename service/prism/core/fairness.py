"""Equal shares of the hot lane for tenants, whatever each of them sends.

The virtual token counter of Sheng et al., *Fairness in Serving Large Language Models* (OSDI 2024), which is start-time
fair queueing (Goyal, Vin and Cheng, 1996) with the cost charged when it is known. Each tenant has a counter of the
prompt tokens that were computed for its hot admissions; the next admission is of the waiting tenant with the least
counter, and inside a tenant the order that the settings name decides. A tenant that begins to wait starts from the
least counter of those that wait, if its own is less: time in which it asked for nothing is no credit.

While two tenants both wait, their hot admissions so differ by at most the cost of one request of each, over any span:

    |W_a − W_b| ≤ c_a + c_b

where W is what was charged to a tenant in the span and c its dearest request.

What is remembered is bounded. A tenant with nothing waiting whose counter lies at or below the floor, the least counter
that anybody can start from, is forgotten, since it would start from the floor anyway. Of the others only so many are
kept: when there are more, the floor rises to the least of them, so leaving or coming under many names gains nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from sortedcontainers import SortedKeyList, SortedList

from prism.core.admission import HotOrder, Waiting


class _Tenant:
    """One with waiting requests."""

    __slots__ = ("counter", "name", "order", "passed", "since", "waiting")

    def __init__(self, name: str, order: HotOrder, counter: int, since: int) -> None:
        self.name = name
        self.order = order
        self.counter = counter
        self.since = since
        """Number of the request with which it began to wait; decides between equals."""
        self.waiting = 0
        self.passed = -1
        """The last pass that its order has begun."""


class _Counters:
    """Counters of tenants with nothing waiting, those above a floor."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._of: dict[str, int] = {}
        self._sorted: SortedList[tuple[int, str]] = SortedList()
        self.floor = 0

    def __len__(self) -> int:
        return len(self._of)

    def pop(self, tenant: str) -> int:
        """Where it starts from; it is not kept here any more."""
        counter = self._of.pop(tenant, None)
        if counter is None:
            return self.floor
        self._sorted.remove((counter, tenant))
        return max(counter, self.floor)

    def keep(self, tenant: str, counter: int) -> None:
        self._of[tenant] = counter
        self._sorted.add((counter, tenant))
        if len(self._of) > self._limit:
            self.raise_floor(self._sorted[0][0])

    def raise_floor(self, floor: int) -> None:
        """Nobody starts below it from now on; whom that makes equal to a newcomer is forgotten."""
        self.floor = max(self.floor, floor)
        while self._sorted and self._sorted[0][0] <= self.floor:
            _, tenant = self._sorted.pop(0)
            del self._of[tenant]

    @property
    def most(self) -> int:
        return int(self._sorted[-1][0]) if self._sorted else self.floor


class ByFairShare(HotOrder):
    """The waiting tenant with the least counter is next; inside a tenant another order decides.

    Work per choice is that of the inner order: only the order of the tenant that is next is asked.

    Args:
        new_order: makes the order inside one tenant.
        remembered: how many tenants with nothing waiting are remembered at most.
    """

    has_lanes = True

    def __init__(self, new_order: Callable[[], HotOrder], remembered: int = 4096) -> None:
        self._new_order = new_order
        self._tenants: dict[str, _Tenant] = {}
        self._by_counter: SortedKeyList[_Tenant] = SortedKeyList(key=lambda tenant: (tenant.counter, tenant.since))
        self._idle = _Counters(remembered)
        self._passes = 0

    def add(self, waiting: Waiting) -> None:
        tenant = self._tenants.get(waiting.tenant)
        if tenant is None:
            counter = self._idle.pop(waiting.tenant)
            tenant = _Tenant(waiting.tenant, self._new_order(), counter, waiting.number)
            self._tenants[waiting.tenant] = tenant
            self._by_counter.add(tenant)
        tenant.order.add(waiting)
        tenant.waiting += 1

    def remove(self, waiting: Waiting) -> None:
        tenant = self._tenants[waiting.tenant]
        tenant.order.remove(waiting)
        tenant.waiting -= 1
        if not tenant.waiting:
            del self._tenants[tenant.name]
            self._by_counter.remove(tenant)
            self._idle.keep(tenant.name, tenant.counter)
            self._raise_floor()

    def admitted(self, waiting: Waiting, computed_tokens: int) -> None:
        cost = max(1, computed_tokens)
        tenant = self._tenants.get(waiting.tenant)
        if tenant is None:
            self._idle.keep(waiting.tenant, self._idle.pop(waiting.tenant) + cost)
        else:
            self._by_counter.remove(tenant)
            tenant.counter += cost
            self._by_counter.add(tenant)
        self._raise_floor()

    def look_ahead(self, count: int) -> None:
        # Whose turn it will be shows when it is chosen; the one that is next now is the likeliest.
        self._by_counter[0].order.look_ahead(count)

    def begin_pass(self) -> None:
        # Told to a tenant's order when it is asked: a pass must not grow with the number of tenants.
        self._passes += 1

    def first(self) -> Waiting:
        tenant: _Tenant = self._by_counter[0]
        if tenant.passed != self._passes:
            tenant.passed = self._passes
            tenant.order.begin_pass()
        return tenant.order.first()

    def __iter__(self) -> Iterator[Waiting]:
        """In turns, one of each tenant."""
        turns: deque[Iterator[Waiting]] = deque()
        for tenant in self._by_counter:
            turn = iter(tenant.order)
            yield next(turn)
            turns.append(turn)
        while turns:
            turn = turns.popleft()
            waiting = next(turn, None)
            if waiting is not None:
                yield waiting
                turns.append(turn)

    def _raise_floor(self) -> None:
        # With nobody waiting all are equal again: there is nothing to share.
        self._idle.raise_floor(self._by_counter[0].counter if self._by_counter else self._idle.most)
