"""The cold lane's promise: how often in a row, and for how long, the oldest waiting request is overtaken."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism.core.lanes import ColdLane, LaneLedger

modest = settings(max_examples=100)
AWKWARD = [0.05, 0.07, 0.1, 0.15, 0.3, 1 / 3, 0.34, 0.49, 0.5, 0.51, 2 / 3, 0.9, 1.0]


def admissions(quota: float, count: int) -> list[bool]:
    """Whether each admission was one of the oldest, with a hot lane that always passes it."""
    ledger = LaneLedger(ColdLane(quota))
    out: list[bool] = []
    for number in range(count):
        cold = ledger.is_due()
        oldest = sum(out)
        ledger.admitted(oldest if cold else 1_000 + number, oldest, cold, float(number))
        out.append(cold)
    return out


def longest_run(cold: list[bool]) -> int:
    runs = "".join("c" if oldest else "h" for oldest in cold).split("c")
    return max(map(len, runs))


@pytest.mark.parametrize("quota", AWKWARD)
def test_the_oldest_is_passed_no_oftener_in_a_row_than_the_quota_says(quota: float) -> None:
    assert longest_run(admissions(quota, 1_000)) == math.ceil(1 / quota - 1e-9) - 1 == ColdLane(quota).longest_run


@modest
@given(st.floats(1e-3, 1.0), st.integers(1, 400))
def test_the_cold_share_is_kept_within_one(quota: float, count: int) -> None:
    cold = admissions(quota, count)
    assert abs(sum(cold) - quota * count) <= 1
    assert longest_run(cold) <= math.ceil(1 / quota) - 1


@modest
@given(st.floats(1e-3, 1.0), st.integers(0, 400))
def test_so_many_may_still_pass_the_oldest(quota: float, before: int) -> None:
    ledger = LaneLedger(ColdLane(quota))
    for number in range(before):
        cold = ledger.is_due()
        ledger.admitted(number if cold else 10_000, number, cold, 0.0)
    left, passed = ledger.passes_left(), 0
    while not ledger.is_due():
        ledger.admitted(10_000, before, False, 0.0)
        passed += 1
    assert passed == left


def test_without_a_quota_they_may_pass_without_end() -> None:
    assert LaneLedger(ColdLane(0.0)).passes_left() == math.inf


@pytest.mark.parametrize(
    ("quota", "longest"), [(1.0, 0), (0.5, 1), (0.34, 2), (1 / 3, 2), (0.3, 3), (0.1, 9), (0.05, 19), (0.0, None)]
)
def test_the_bound_follows_from_the_quota(quota: float, longest: int | None) -> None:
    assert ColdLane(quota).longest_run == longest


def test_quota_zero_keeps_nothing_for_the_oldest() -> None:
    assert not any(admissions(0.0, 500))


def test_quota_zero_makes_nobody_overdue() -> None:
    ledger = LaneLedger(ColdLane(0.0, max_wait_seconds=1.0))
    ledger.admitted(2, 1, False, 0.0)
    assert ledger.first_passed_at(1) == 0.0
    assert not ledger.is_overdue(1, 1e9)


def test_the_clock_starts_at_the_first_admission_that_passes() -> None:
    ledger = LaneLedger(ColdLane(0.1, max_wait_seconds=2.0))
    assert not ledger.is_overdue(1, 100.0)
    ledger.admitted(2, 1, False, 100.0)
    ledger.admitted(3, 1, False, 101.0)
    assert not ledger.is_overdue(1, 101.9)
    assert ledger.is_overdue(1, 102.0)


def test_an_admission_passes_all_older_ones_and_no_younger_one() -> None:
    ledger = LaneLedger(ColdLane())
    ledger.admitted(5, 1, False, 3.0)
    ledger.admitted(9, 1, False, 4.0)
    assert [ledger.first_passed_at(number) for number in (1, 4, 5, 8, 9)] == [3.0, 3.0, 4.0, 4.0, None]


@modest
@given(st.permutations(range(8)))
def test_the_first_time_passed_is_that_of_a_plain_search(order: list[int]) -> None:
    ledger, waiting = LaneLedger(ColdLane()), set(range(8))
    for now, number in enumerate(order):
        ledger.admitted(number, min(waiting), False, float(now))
        waiting.remove(number)
        for left in waiting:
            passes = [float(at) for at, passed_by in enumerate(order[: now + 1]) if passed_by > left]
            assert ledger.first_passed_at(left) == (passes[0] if passes else None)


def test_an_admission_of_the_oldest_passes_nobody() -> None:
    ledger = LaneLedger(ColdLane())
    ledger.admitted(2, 1, False, 0.0)
    ledger.admitted(1, 1, False, 1.0)
    assert ledger.first_passed_at(2) is None
    assert ledger.passed_in_a_row(3) == 0


def test_overtakes_are_counted_for_one_request() -> None:
    ledger = LaneLedger(ColdLane())
    ledger.admitted(3, 1, False, 0.0)
    ledger.admitted(4, 1, False, 0.0)
    assert ledger.passed_in_a_row(1) == 2
    # The first gave up. What had passed it did not pass the fifth.
    assert ledger.passed_in_a_row(5) == 0
    ledger.admitted(6, 5, False, 0.0)
    assert ledger.passed_in_a_row(5) == 1


def test_a_turn_that_the_hot_lane_gave_the_oldest_is_not_charged() -> None:
    ledger = LaneLedger(ColdLane(0.5))
    ledger.admitted(2, 1, False, 0.0)
    assert ledger.is_due()
    ledger.admitted(1, 1, False, 0.0)
    assert ledger.is_due()
    ledger.admitted(3, 3, True, 0.0)
    assert not ledger.is_due()


def test_turns_do_not_pile_up_while_nobody_takes_them() -> None:
    ledger = LaneLedger(ColdLane(0.5))
    for number in range(2, 100):
        ledger.admitted(number, 1, False, 0.0)
    ledger.admitted(1, 1, True, 0.0)
    ledger.admitted(100, 100, True, 0.0)
    assert not ledger.is_due()


def test_another_quota_acts_on_the_next_admission() -> None:
    ledger = LaneLedger(ColdLane(0.1))
    ledger.admitted(2, 1, False, 0.0)
    assert not ledger.is_due()
    ledger.set_lane(ColdLane(0.9))
    assert ledger.is_due()


def test_what_nobody_can_ask_for_again_is_forgotten() -> None:
    ledger = LaneLedger(ColdLane())
    for number in range(1, 200):
        ledger.admitted(number, 0, False, float(number))
    ledger.forget_before(100)
    assert len(ledger._passed_by) == 99
    assert ledger.first_passed_at(100) == 101.0
