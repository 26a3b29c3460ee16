"""Facts find their request whatever comes first, and nothing waits for ever."""

from __future__ import annotations

import pytest

from prism.engine.frontend.desk import (
    LAST_FACTS_SECONDS,
    MAX_UNCLAIMED,
    UNCLAIMED_SECONDS,
    LiveRequest,
    RequestDesk,
    RequestFact,
)
from prism.engine.wire import Admitted, Ended, Preempted, PrefillChunk, PrefillDone, Queued, Resumed
from prism.telemetry.timeline import RequestTimeline

FACTS: list[RequestFact] = [
    Queued("r", 1.0, 3),
    Admitted("r", 2.0, "hot", "b", "order", 2, 32, 64, 1, 2, {"document": 32}, {"document": 64}, [1, 0], 7, 1),
    PrefillChunk("r", 2.0, 32, 64),
    PrefillDone("r", 3.0),
    Preempted("r", 3.5),
    Resumed("r", 3.7, 32),
    Ended("r", 4.0, "stop"),
]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ended() -> list[LiveRequest]:
    return []


@pytest.fixture
def desk(clock: Clock, ended: list[LiveRequest]) -> RequestDesk:
    return RequestDesk(ended.append, clock)


@pytest.fixture
def live(desk: RequestDesk) -> LiveRequest:
    request = LiveRequest(RequestTimeline("id", arrived_at=0.0, arrived_wall_ns=0))
    desk.opened(request)
    return request


def bring(desk: RequestDesk, facts: list[RequestFact]) -> None:
    for fact in facts:
        desk.fact(fact)


@pytest.mark.parametrize("before", range(len(FACTS) + 1))
def test_facts_may_come_before_the_link(desk: RequestDesk, live: LiveRequest, before: int) -> None:
    bring(desk, FACTS[:before])
    request = desk.link("r", live)
    bring(desk, FACTS[before:])
    assert request.admission is not None
    assert (request.queue_depth, request.admission.lane, request.admission.order) == (3, "hot", (1, 0))
    assert (request.prefilled_at, request.preemptions, request.end_reason) == (3.0, 1, "stop")


def test_a_request_ends_at_once_when_its_last_fact_has_come(
    desk: RequestDesk, live: LiveRequest, ended: list[LiveRequest]
) -> None:
    desk.link("r", live)
    bring(desk, FACTS)
    desk.closed(live)
    assert ended == [live]


def test_a_request_that_never_reached_the_engine_ends_at_once(
    desk: RequestDesk, live: LiveRequest, ended: list[LiveRequest]
) -> None:
    desk.closed(live)
    assert ended == [live]


def test_a_late_last_fact_ends_it(desk: RequestDesk, live: LiveRequest, ended: list[LiveRequest]) -> None:
    desk.link("r", live)
    desk.closed(live)
    assert ended == []
    bring(desk, FACTS)
    assert ended == [live]


def test_a_lost_last_fact_is_not_waited_for_long(
    desk: RequestDesk, live: LiveRequest, ended: list[LiveRequest], clock: Clock
) -> None:
    desk.link("r", live)
    desk.closed(live)
    clock.now = LAST_FACTS_SECONDS
    desk.sweep()
    assert ended == [live]


def test_it_ends_once(desk: RequestDesk, live: LiveRequest, ended: list[LiveRequest], clock: Clock) -> None:
    desk.link("r", live)
    desk.closed(live)
    bring(desk, [*FACTS, *FACTS])
    clock.now = 100.0
    desk.sweep()
    assert ended == [live]


def test_facts_that_nobody_claims_are_forgotten(desk: RequestDesk, live: LiveRequest, clock: Clock) -> None:
    bring(desk, FACTS)
    clock.now = UNCLAIMED_SECONDS
    desk.sweep()
    assert desk.link("r", live).admission is None


def test_unclaimed_facts_are_bounded(desk: RequestDesk) -> None:
    bring(desk, [Queued(f"r{n}", 0.0, 0) for n in range(MAX_UNCLAIMED + 5)])
    assert desk.unclaimed_dropped == 5


def test_a_lost_message_is_known_to_every_request_under_way(desk: RequestDesk, live: LiveRequest) -> None:
    desk.facts_lost()
    assert live.timeline.incomplete


def test_tokens_are_counted_and_the_first_one_noted(desk: RequestDesk, live: LiveRequest) -> None:
    desk.link("r", live)
    live.received("r", 0, 1.0)
    live.received("r", 2, 2.0)
    live.received("r", 1, 3.0)
    assert live.tokens["r"] == (2, 1)
    assert live.timeline.engine_request("r").first_output_at == 2.0


async def test_waiting_for_facts_ends_when_they_have_come_or_in_time(desk: RequestDesk, live: LiveRequest) -> None:
    desk.link("r", live)
    await live.wait_for_facts(0.01)
    assert not live.first_pass_known
    bring(desk, FACTS)
    await live.wait_for_facts(60.0)
    assert live.first_pass_known


def test_work_that_outlives_its_request_leaves_nothing_behind(desk: RequestDesk, live: LiveRequest) -> None:
    desk.closed(live)
    desk.link("late", live)
    assert desk.sizes()["engine_requests"] == 0
    assert not desk.knows(live)
