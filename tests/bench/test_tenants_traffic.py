"""What the two tenants of the flood measurement send."""

from __future__ import annotations

import pytest

from prism.bench.tenants import FLOOD, QUIET, Traffic
from prism.core.namespace import namespace

TRAFFIC = Traffic(per_second=2.0, times=10.0, seconds=60.0)


def counts(first: float, last: float) -> dict[str, int]:
    there = [one for one in TRAFFIC.workload(0).arrivals if first <= one.at_s < last]
    return {name: sum(one.request.cache_salt == namespace(name) for one in there) for name in (QUIET, FLOOD)}


def test_the_flood_comes_in_the_middle_third_alone() -> None:
    assert counts(0, 20)[FLOOD] == counts(40, 60)[FLOOD] == 0
    assert counts(20, 40)[FLOOD] == pytest.approx(400, rel=0.2)


def test_the_quiet_tenant_asks_all_the_time() -> None:
    assert all(counts(start, start + 20)[QUIET] == pytest.approx(40, rel=0.5) for start in (0, 20, 40))


def test_every_request_is_known_by_its_tenant() -> None:
    for one in TRAFFIC.workload(0).arrivals:
        tenant = one.request.name.split()[0]
        assert one.request.plan is not None
        assert one.request.plan.namespace == one.request.cache_salt == namespace(tenant)
