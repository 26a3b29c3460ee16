"""What waits is counted exactly, and what goes beyond a bound is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prism.config.schema import Limits
from prism.engine.frontend.intake import CALM_SECONDS, LONGEST_RETRY_AFTER_SECONDS, Intake
from prism.errors import RequestRefused
from prism.telemetry.log import words_of


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def bounded(clock: Clock, requests: int = 0, tokens: int = 0) -> Intake:
    return Intake(lambda: Limits(max_waiting_requests=requests, max_waiting_prompt_tokens=tokens), clock)


def served(intake: Intake, name: str, tokens: int = 8) -> None:
    """One request from its arrival to its end."""
    intake.arrived(name)
    intake.rendered(name, [tokens])
    intake.handed_over(name, name, tokens)
    intake.admitted(name, name)
    intake.left(name)


def test_a_request_waits_from_arrival_to_admission(clock: Clock) -> None:
    intake, seen = bounded(clock), []
    steps: tuple[Callable[[], None], ...] = (
        lambda: intake.arrived("a"),
        lambda: intake.rendered("a", [30]),
        lambda: intake.handed_over("a", "a-0", 30),
        lambda: intake.admitted("a", "a-0"),
    )
    for step in steps:
        step()
        seen.append((intake.requests, intake.tokens))
    assert seen == [(1, 0), (1, 30), (1, 30), (0, 0)]


def test_copies_and_prompts_count_as_engine_requests(clock: Clock) -> None:
    intake = bounded(clock)
    intake.arrived("a")
    intake.rendered("a", [10, 20], 3)
    assert (intake.requests, intake.tokens) == (6, 90)
    intake.handed_over("a", "a-0", 10)
    assert (intake.requests, intake.tokens) == (6, 90)
    intake.left("a")
    assert (intake.requests, intake.tokens) == (0, 0)


def test_as_many_as_may_wait_are_taken(clock: Clock) -> None:
    intake = bounded(clock, requests=2)
    intake.arrived("a")
    intake.arrived("b")
    with pytest.raises(RequestRefused) as refused:
        intake.arrived("c")
    assert (refused.value.status, refused.value.reason, intake.requests) == (429, "queue_full", 2)


def test_an_admission_makes_room(clock: Clock) -> None:
    intake = bounded(clock, requests=1)
    intake.arrived("a")
    intake.handed_over("a", "a-0", 5)
    intake.admitted("a", "a-0")
    intake.arrived("b")
    assert intake.requests == 1


def test_prompt_tokens_are_bounded_after_tokenisation(clock: Clock) -> None:
    intake = bounded(clock, tokens=100)
    intake.arrived("a")
    intake.rendered("a", [60])
    intake.arrived("b")
    with pytest.raises(RequestRefused) as refused:
        intake.rendered("b", [60])
    assert refused.value.reason == "prompt_tokens_full"


def test_a_request_above_a_bound_is_taken_when_nothing_else_waits(clock: Clock) -> None:
    intake = bounded(clock, requests=2, tokens=10)
    intake.arrived("a")
    intake.rendered("a", [400], 8)
    assert (intake.requests, intake.tokens) == (8, 3200)


def test_what_was_not_rendered_is_checked_when_it_is_handed_over(clock: Clock) -> None:
    intake = bounded(clock, tokens=100)
    intake.arrived("a")
    intake.handed_over("a", "a-0", 60)
    intake.arrived("b")
    with pytest.raises(RequestRefused):
        intake.handed_over("b", "b-0", 60)


def test_a_changed_limit_counts_from_the_next_request_on(clock: Clock) -> None:
    limits = [Limits(max_waiting_requests=0)]
    intake = Intake(lambda: limits[0], clock)
    for name in "abc":
        intake.arrived(name)
    limits[0] = Limits(max_waiting_requests=3)
    with pytest.raises(RequestRefused):
        intake.arrived("d")


def test_clients_are_told_to_come_back_no_faster_than_they_can_be_served(clock: Clock) -> None:
    intake = bounded(clock, requests=1)
    for number in range(60):
        served(intake, f"r{number}")
        clock.now += 0.5
    intake.arrived("waits")
    waits = [refused(intake, f"more{number}") for number in range(400)]
    assert waits[:4] == [1, 1, 2, 2]
    assert max(waits) == LONGEST_RETRY_AFTER_SECONDS
    assert waits == sorted(waits)


def refused(intake: Intake, name: str) -> int:
    with pytest.raises(RequestRefused) as refusal:
        intake.arrived(name)
    assert refusal.value.retry_after_s is not None
    return refusal.value.retry_after_s


def test_an_overload_is_told_once_and_its_end_too(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("prism").propagate = True
    caplog.set_level("INFO", "prism")
    intake = bounded(clock, requests=1)
    intake.arrived("a")
    for number in range(5):
        refused(intake, str(number))
        intake.look()
    clock.now += CALM_SECONDS
    intake.look()
    intake.look()
    words = [words_of(record) for record in caplog.records]
    assert [word["event"] for word in words] == ["overload_begins", "overload_ends"]
    assert words[1]["refused"] == 5


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrived", "rendered", "handed_over", "admitted", "left"]),
        st.sampled_from("abc"),
        st.integers(0, 3),
        st.integers(0, 50),
    ),
    max_size=60,
)


@given(STEPS, st.integers(0, 4), st.integers(0, 80))
def test_no_order_of_events_leaves_anything_counted(
    steps: list[tuple[str, str, int, int]], most: int, tokens: int
) -> None:
    intake = bounded(Clock(), requests=most, tokens=tokens)
    open_now: set[str] = set()
    for step, name, number, length in steps:
        try:
            match step:
                case "arrived" if name not in open_now:
                    intake.arrived(name)
                    open_now.add(name)
                case "rendered":
                    intake.rendered(name, [length] * number, number or 1)
                case "handed_over":
                    intake.handed_over(name, f"{name}-{number}", length)
                case "admitted":
                    intake.admitted(name, f"{name}-{number}")
                case "left":
                    intake.left(name)
                    open_now.discard(name)
        except RequestRefused:
            pass
        assert intake.requests >= 0
        assert intake.tokens >= 0
    for name in open_now:
        intake.left(name)
    assert (intake.requests, intake.tokens) == (0, 0)
