"""The demand ledger against a naive count of requests, and what its counts are worth."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prism.core.demand import EVERYBODY, NOBODY, Demand, DemandLedger, Weights

GROUPS = [b"a", b"b", b"c"]
PARTS = st.lists(st.sampled_from(GROUPS), max_size=4)
modest = settings(max_examples=100)


class LedgerMachine(RuleBasedStateMachine):
    """Requests arrive, run and leave; the model keeps them in plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = DemandLedger(window=4)
        self.queued: dict[str, set[bytes]] = {}
        self.active: dict[str, set[bytes]] = {}
        self.recent: list[set[bytes]] = []
        self.names = 0
        self.epoch = -1

    def changed(self) -> None:
        assert self.ledger.epoch > self.epoch, "a memo made before a change must not look right"
        self.epoch = self.ledger.epoch

    @rule(groups=PARTS)
    def arrive(self, groups: list[bytes]) -> None:
        name = f"r{self.names}"
        self.names += 1
        self.ledger.arrive(name, groups)
        self.queued[name] = set(groups)
        self.recent = [*self.recent, set(groups)][-self.ledger.window :]
        self.changed()

    @precondition(lambda self: self.queued)
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.queued)))
        self.ledger.admit(name)
        self.active[name] = self.queued.pop(name)
        self.changed()

    @precondition(lambda self: self.queued or self.active)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.queued | self.active)))
        self.ledger.leave(name)
        self.queued.pop(name, None)
        self.active.pop(name, None)
        self.changed()

    @rule(window=st.integers(1, 9))
    def resize(self, window: int) -> None:
        self.ledger.resize(window)
        self.recent = self.recent[-window:]

    @rule(data=st.data())
    def ignore(self, data: st.DataObject) -> None:
        """Requests that are not here, and those that run already, change nothing."""
        before = self.ledger.epoch
        self.ledger.admit(data.draw(st.sampled_from(["nobody", *self.active])))
        self.ledger.leave("nobody")
        assert self.ledger.epoch == before

    @invariant()
    def counts_what_the_model_counts(self) -> None:
        assert len(self.ledger) == len(self.queued) + len(self.active)
        for groups in ([b"a"], [b"b"], [b"a", b"b"], [b"a", b"b", b"c"]):
            wanted = set(groups)
            lists = (self.queued.values(), self.active.values(), self.recent)
            expected = Demand(*(sum(wanted <= held for held in held_by) for held_by in lists))
            assert self.ledger.joint(groups).counts() == expected
            assert len(groups) > 1 or self.ledger.demand(groups[0]) == expected

    @invariant()
    def slots_are_distinct_and_few(self) -> None:
        slots = [self.ledger.slot(name) for name in [*self.queued, *self.active]]
        assert len(set(slots)) == len(slots)
        assert all(slot < self.names for slot in slots)

    @invariant()
    def nothing_is_kept_of_what_nobody_wants(self) -> None:
        assert set(self.ledger._wants) == set().union(*self.queued.values(), *self.active.values(), *self.recent)


LedgerMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30)
TestLedger = LedgerMachine.TestCase


def used(window: int, arrivals: Sequence[bytes]) -> DemandLedger:
    ledger = DemandLedger(window)
    for number, group in enumerate(arrivals):
        ledger.arrive(str(number), [group])
        ledger.leave(str(number))
    return ledger


def test_a_request_can_not_arrive_twice() -> None:
    ledger = DemandLedger()
    ledger.arrive("r", [b"a"])
    with pytest.raises(ValueError, match="r arrived twice"):
        ledger.arrive("r", [b"b"])
    assert ledger.demand(b"a") == Demand(1, 0, 1)
    assert ledger.demand(b"b") == Demand(0, 0, 0)


def test_a_slot_is_free_again_when_its_request_leaves() -> None:
    ledger = DemandLedger()
    for name in ("a", "b", "c"):
        ledger.arrive(name, [])
    ledger.leave("a")
    ledger.leave("b")
    ledger.arrive("d", [])
    assert (ledger.slot("d"), ledger.slot("c")) == (0, 2)
    with pytest.raises(KeyError):
        ledger.slot("a")


def test_nobody_wants_no_segment_in_particular() -> None:
    ledger = used(8, [b"a"])
    assert ledger.joint([]) is NOBODY
    assert EVERYBODY.joint(ledger.sets(b"a")) == ledger.sets(b"a")


@modest
@given(st.lists(st.sampled_from(GROUPS), max_size=40), st.integers(1, 16))
def test_each_use_counts_half_after_each_window_of_arrivals(arrivals: list[bytes], window: int) -> None:
    ledger = used(window, arrivals)
    uses = [at for at, group in enumerate(arrivals) if group == b"a"]
    expected = sum(0.5 ** ((len(arrivals) - at) / window) for at in uses)
    assert ledger.frequency(b"a") == pytest.approx(expected, rel=1e-9)


def test_frequency_remembers_beyond_the_window() -> None:
    ledger = used(4, [b"a"] + [b"b"] * 8)
    assert ledger.demand(b"a").predicted == 0
    assert 0 < ledger.frequency(b"a") < ledger.frequency(b"b")


def test_a_full_table_of_frequencies_forgets_the_rare() -> None:
    class Small(DemandLedger):
        _FREQUENCY_TABLE = 8

    ledger = Small(window=1024)
    for number in range(100):
        ledger.arrive(str(number), [b"hot", b"%d" % number])
        assert len(ledger._frequency) <= 8
    assert ledger.frequency(b"hot") > 90
    assert ledger.frequency(b"0") == 0


def test_the_newest_arrivals_survive_another_window() -> None:
    ledger = used(8, [b"old"] * 4 + [b"new"] * 4)
    ledger.resize(6)
    assert (ledger.demand(b"old").predicted, ledger.demand(b"new").predicted) == (2, 4)
    ledger.resize(8)
    assert (ledger.demand(b"old").predicted, ledger.demand(b"new").predicted) == (2, 4)


def test_an_equal_window_changes_nothing() -> None:
    ledger = used(8, [b"a"])
    epoch = ledger.epoch
    ledger.resize(8)
    assert ledger.epoch == epoch


def test_counts_may_outweigh_a_higher_class_by_default() -> None:
    weights = Weights(active=100, predicted=10, queued=1)
    assert weights.of(Demand(queued=0, active=1, predicted=0)) == (100.0,)
    assert weights.of(Demand(queued=0, active=0, predicted=11)) > weights.of(Demand(0, 1, 0))


@modest
@given(st.tuples(*[st.integers(0, 9)] * 3), st.tuples(*[st.integers(0, 9)] * 3))
def test_lexicographic_compares_class_by_class(a: tuple[int, int, int], b: tuple[int, int, int]) -> None:
    weights = Weights(lexicographic=True)
    (active_a, predicted_a, queued_a), (active_b, predicted_b, queued_b) = a, b
    worths = weights.of(Demand(queued_a, active_a, predicted_a)), weights.of(Demand(queued_b, active_b, predicted_b))
    assert (worths[0] < worths[1]) == (a < b)


@modest
@given(st.tuples(*[st.floats(0.01, 1e6)] * 3), st.tuples(*[st.integers(0, 99)] * 3))
def test_utility_is_the_weighted_sum(weights: tuple[float, float, float], counts: tuple[int, int, int]) -> None:
    expected = sum(weight * count for weight, count in zip(weights, counts, strict=True))
    active, predicted, queued = counts
    (worth,) = Weights(*weights).of(Demand(queued, active, predicted))
    assert worth == pytest.approx(expected)
