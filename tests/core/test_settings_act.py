"""Every setting of the scheduler acts, live: adopting another value changes a decision about the same requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from prism.config.schema import ContractModel, PrismSpec, Scheduler, part_of
from prism.core.decisions import Decisions
from prism.core.namespace import namespace
from prism.core.segments import PromptPlan, Segment, SegmentKind

TOKENS = 16
Spec = dict[str, Any]


def read(scheduler: Spec) -> PrismSpec:
    return PrismSpec.model_validate({"scheduler": scheduler}, by_alias=True, by_name=False)


def arrive(decisions: Decisions, name: str, documents: str, *, now: float = 0.0, salt: str = "") -> None:
    """A prompt of one block a document; the first block's hash is the documents before it, too."""
    kinds = [
        Segment(SegmentKind.DOCUMENT, at * TOKENS, (at + 1) * TOKENS, letter.encode(), letter.encode())
        for at, letter in enumerate(documents)
    ]
    runs = tuple((segment.start, segment.end) for segment in kinds)
    plan = PromptPlan(namespace(salt), tuple(kinds), runs, tuple(range(len(runs))))
    hashes = [documents[: at + 1].encode() for at in range(len(documents))]
    decisions.arrive(name, plan, len(documents) * TOKENS, hashes, 0, now)


def come_and_go(decisions: Decisions, *arrivals: str) -> None:
    for number, documents in enumerate(arrivals):
        arrive(decisions, f"past {number} {documents}", documents)
        decisions.leave(f"past {number} {documents}")


def run(decisions: Decisions, name: str, documents: str) -> None:
    arrive(decisions, name, documents)
    decisions.take(name)
    decisions.admitted(name, 0, 0.0)


def cache(decisions: Decisions, documents: str, block: int) -> None:
    """A document that is cached and free."""
    run(decisions, f"cached {documents}", documents)
    decisions.settle(f"cached {documents}", 1)
    decisions.tree.free(block, documents.encode(), 0)
    decisions.leave(f"cached {documents}")


def admitted(decisions: Decisions, times: int = 1, now: float = 0.0) -> str:
    """Who is admitted next, in turn."""
    out = []
    for _ in range(times):
        decisions.begin_pass(now)
        head = decisions.head(now)
        assert head is not None
        decisions.take(head.waiting.request)
        decisions.admitted(head.waiting.request, 0, now)
        out.append(head.waiting.request)
    return " ".join(out)


def arranged(decisions: Decisions) -> str:
    """The order of the documents `ab` of a request."""
    order = decisions.arrangement("asks")
    return "ab" if order is None else "".join("ab"[index] for index in order)


def first_given_up(decisions: Decisions) -> str:
    return {1: "a", 2: "b"}[decisions.tree.in_order()[0]]


@dataclass(frozen=True)
class Scenario:
    """What is decided with one value and with another, about what `prepare` brings in."""

    setting: str
    prepare: Callable[[Decisions], None]
    decide: Callable[[Decisions], str]
    before: tuple[Spec, str]
    after: tuple[Spec, str]
    also: Spec = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.setting} {self.decide.__name__}"


# --- order ------------------------------------------------------------------------------------------------------


def one_old_and_two_alike(decisions: Decisions) -> None:
    """`old` came first, `big` stands for the largest bucket, `warm` is cached and `prompt` is not."""
    cache(decisions, "w", 1)
    arrive(decisions, "old", "oo")
    arrive(decisions, "warm", "w", now=1.0)
    arrive(decisions, "big", "x", now=2.0)
    arrive(decisions, "large", "x", now=2.0)


PATIENT = 40.0
"""Seconds a token takes where a head start is to put warm requests first."""


# --- weights ----------------------------------------------------------------------------------------------------


def b_runs_and_a_was_asked_for(decisions: Decisions) -> None:
    come_and_go(decisions, *"aaaa")
    run(decisions, "runs", "b")
    arrive(decisions, "asks", "ab")


def a_waits_and_b_was_asked_for(decisions: Decisions) -> None:
    for number in range(5):
        arrive(decisions, f"waits {number}", "a")
    come_and_go(decisions, *"x" * 64, "b")
    arrive(decisions, "asks", "ab")


def a_was_asked_for_often_and_b_runs(decisions: Decisions) -> None:
    come_and_go(decisions, *"a" * 12)
    run(decisions, "runs", "b")
    arrive(decisions, "asks", "ab")


def both_cached_and_waited_for(decisions: Decisions) -> None:
    """Five wait for `a`, of which nobody asked lately; one for `b`, of which somebody did."""
    cache(decisions, "a", 1)
    cache(decisions, "b", 2)
    for number in range(5):
        arrive(decisions, f"waits {number}", "a")
    come_and_go(decisions, *"x" * 64)
    arrive(decisions, "waits for b", "b")


# --- the cold lane ----------------------------------------------------------------------------------------------


def a_hot_stream(decisions: Decisions) -> None:
    arrive(decisions, "cold", "z")
    for number in range(20):
        arrive(decisions, f"hot{number}", "h")


def a_cold_one_that_was_passed(decisions: Decisions) -> None:
    a_hot_stream(decisions)
    admitted(decisions)


def two_admitted(decisions: Decisions) -> str:
    return admitted(decisions, 2)


def after_five_seconds(decisions: Decisions) -> str:
    return admitted(decisions, 1, now=5.0)


# --- the rest ---------------------------------------------------------------------------------------------------


def b_is_more_wanted(decisions: Decisions) -> None:
    come_and_go(decisions, *"bbb")
    arrive(decisions, "asks", "ab")


def buckets_that_share_their_first_document(decisions: Decisions) -> None:
    come_and_go(decisions, *"h" * 9)
    for name, documents in (("pair1", "p"), ("pair2", "p"), ("h1", "hx"), ("h2", "hy"), ("h3", "hz")):
        arrive(decisions, name, documents)


def a_pair_of_the_unpopular(decisions: Decisions) -> None:
    for name, documents in (("old", "x"), ("pair1", "p"), ("pair2", "p")):
        arrive(decisions, name, documents)


def a_was_wanted_long_ago(decisions: Decisions) -> None:
    come_and_go(decisions, *"aaa", *"x" * 64, "b")
    arrive(decisions, "asks", "ab")


def a_cold_and_a_warm_one(decisions: Decisions) -> None:
    cache(decisions, "w", 1)
    arrive(decisions, "cold", "c")
    arrive(decisions, "warm", "w")


def a_flood_and_a_quiet_tenant(decisions: Decisions) -> None:
    for number in range(4):
        arrive(decisions, f"flood{number}", "f", salt="flood")
    arrive(decisions, "quiet", "q", salt="quiet")


SCENARIOS = [
    Scenario("order", one_old_and_two_alike, admitted, ({"order": "Paper"}, "big"), ({"order": "FCFS"}, "old")),
    Scenario("order", one_old_and_two_alike, admitted, ({"order": "FCFS"}, "old"), ({"order": "LPM"}, "warm")),
    Scenario("order", one_old_and_two_alike, admitted, ({"order": "LPM"}, "warm"), ({"order": "Paper"}, "big")),
    Scenario("order", one_old_and_two_alike, admitted, ({"order": "FCFS"}, "old"), ({"order": "Prism"}, "warm")),
    Scenario(
        "weights.active",
        b_runs_and_a_was_asked_for,
        arranged,
        ({"weights": {"active": 100}}, "ba"),
        ({"weights": {"active": 11}}, "ab"),
        {"order": "Paper"},
    ),
    Scenario(
        "weights.predicted",
        b_runs_and_a_was_asked_for,
        arranged,
        ({"weights": {"predicted": 10}}, "ba"),
        ({"weights": {"predicted": 99}}, "ab"),
        {"order": "Paper"},
    ),
    Scenario(
        "weights.queued",
        a_waits_and_b_was_asked_for,
        arranged,
        ({"weights": {"queued": 1}}, "ba"),
        ({"weights": {"queued": 9}}, "ab"),
        {"window": {"arrivals": 64}},
    ),
    Scenario(
        "weights.queued",
        both_cached_and_waited_for,
        first_given_up,
        ({"weights": {"queued": 1}}, "a"),
        ({"weights": {"queued": 9}}, "b"),
        {"window": {"arrivals": 64}},
    ),
    Scenario(
        "lexicographic",
        a_was_asked_for_often_and_b_runs,
        arranged,
        ({"lexicographic": False}, "ab"),
        ({"lexicographic": True}, "ba"),
        {"order": "Paper"},
    ),
    Scenario(
        "lexicographic",
        both_cached_and_waited_for,
        first_given_up,
        ({"lexicographic": False}, "b"),
        ({"lexicographic": True}, "a"),
        {"window": {"arrivals": 64}, "weights": {"queued": 9}},
    ),
    Scenario(
        "coldLane.quota",
        a_hot_stream,
        two_admitted,
        ({"coldLane": {"quota": 0.5}}, "hot0 cold"),
        ({"coldLane": {"quota": 0}}, "hot0 hot1"),
        {"order": "Paper"},
    ),
    Scenario(
        "coldLane.maxWaitSeconds",
        a_cold_one_that_was_passed,
        after_five_seconds,
        ({"coldLane": {"maxWaitSeconds": 10}}, "hot1"),
        ({"coldLane": {"maxWaitSeconds": 5}}, "cold"),
        {"order": "Paper"},
    ),
    Scenario("reorder", b_is_more_wanted, arranged, ({"reorder": "Declared"}, "ba"), ({"reorder": "Never"}, "ab")),
    Scenario(
        "fairness.enabled",
        a_flood_and_a_quiet_tenant,
        two_admitted,
        ({"fairness": {"enabled": False}}, "flood0 flood1"),
        ({"fairness": {"enabled": True}}, "flood0 quiet"),
    ),
    Scenario(
        "fairness.enabled",
        a_flood_and_a_quiet_tenant,
        two_admitted,
        ({"fairness": {"enabled": False}}, "flood0 flood1"),
        ({"fairness": {"enabled": True}}, "flood0 quiet"),
        {"order": "Paper"},
    ),
    Scenario(
        "buckets.signatureLength",
        buckets_that_share_their_first_document,
        admitted,
        ({"buckets": {"signatureLength": 2}}, "pair1"),
        ({"buckets": {"signatureLength": 1}}, "h1"),
        {"order": "Paper"},
    ),
    Scenario(
        "buckets.minUtility",
        a_pair_of_the_unpopular,
        admitted,
        ({"buckets": {"minUtility": 2}}, "pair1"),
        ({"buckets": {"minUtility": 1000}}, "old"),
        {"order": "Paper"},
    ),
    Scenario(
        "window.arrivals",
        a_was_wanted_long_ago,
        arranged,
        ({"window": {"arrivals": 1024}}, "ab"),
        ({"window": {"arrivals": 64}}, "ba"),
    ),
    Scenario(
        "longestPrefixMatch.fallBackAt",
        a_cold_and_a_warm_one,
        admitted,
        ({"longestPrefixMatch": {"fallBackAt": 3}}, "warm"),
        ({"longestPrefixMatch": {"fallBackAt": 2}}, "cold"),
        {"order": "LPM"},
    ),
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
@pytest.mark.parametrize("live", [False, True], ids=["from the start", "adopted later"])
def test_another_value_changes_the_decision(scenario: Scenario, live: bool) -> None:
    for (value, expected), (other, _) in (
        (scenario.before, scenario.after),
        (scenario.after, scenario.before),
    ):
        settings = read({**scenario.also, **value})
        decisions = Decisions(TOKENS, read({**scenario.also, **other}) if live else settings, lambda: PATIENT)
        # The window is what was looked at while requests came, so it is kept from the start.
        if live and scenario.setting == "window.arrivals":
            decisions.adopt(settings)
        scenario.prepare(decisions)
        decisions.adopt(settings)
        assert scenario.decide(decisions) == expected


def leaves(model: type[ContractModel], prefix: str = "") -> list[str]:
    out = []
    for name, info in model.model_fields.items():
        part, path = part_of(info.annotation), prefix + to_camel(name)
        out += leaves(part, path + ".") if part is not None else [path]
    return out


def test_every_setting_of_the_scheduler_has_its_scenario() -> None:
    assert {scenario.setting for scenario in SCENARIOS} == set(leaves(Scheduler))
