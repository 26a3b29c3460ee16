"""What is read out of cells: percentiles over seeds, the strongest baseline, intervals, knees, the table of goals."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from prism.bench.cells import CellStore, Outcome
from prism.bench.estimates import Interval
from prism.bench.findings import Findings, mean_p99_interval, p99_against, p99_interval
from prism.bench.goals import goals
from prism.bench.pages import write_pages
from prism.bench.studies import STUDIES, Panel
from prism.bench.summary import Summary

PANEL = Panel("rag", "qwen3-4b", (5.0, 9.0, 11.0), ("stock", "contextpilot", "prism"), ("stock", "contextpilot"))
SEEDS = (1, 2, 3)


def summary(requests: int, unfinished: int, hit_percent: float) -> Summary:
    return Summary(requests, unfinished, hit_percent, None, None, None, None, None, 0.0, 0.0, 0.0, 0.0, 0, 0.0)


def store_with(
    folder: Path, p99_ms: Mapping[tuple[str, float], float], hit: Mapping[str, float], requests: int = 800
) -> CellStore:
    """Cells whose times are uniform up to a bound; -1 for a bound is an engine that served half of them."""
    store = CellStore(folder)
    for (arm, load), bound in p99_ms.items():
        for seed in SEEDS:
            rng = random.Random(f"{arm} {load} {seed}")
            ttft = [round(rng.uniform(0, abs(bound))) for _ in range(requests)]
            if bound < 0:
                ttft[::2] = [-1] * (requests // 2)
            cell = PANEL.cell(arm, load, seed)
            counts = summary(requests, requests // 2 * (bound < 0), hit[arm])
            outcome = Outcome(cell.key, cell.definition(), counts, ttft, [0, 1, 2])
            store.put(outcome)
    return store


@pytest.fixture
def found(tmp_path: Path) -> Findings:
    p99_ms = {
        ("stock", 5.0): 400,
        ("stock", 9.0): 3_000,
        ("stock", 11.0): -1,
        ("contextpilot", 5.0): 500,
        ("contextpilot", 9.0): 800,
        ("contextpilot", 11.0): 1_200,
        ("prism", 5.0): 300,
        ("prism", 9.0): 400,
        ("prism", 11.0): 600,
    }
    hit = {"stock": 20.0, "contextpilot": 33.0, "prism": 40.0}
    return Findings.of(PANEL, SEEDS, store_with(tmp_path / "cells", p99_ms, hit))


def test_the_strongest_is_the_best_baseline_of_that_load(found: Findings) -> None:
    strongest = [found.strongest(load) for load in found.loads]
    assert [point.arm for point in strongest if point] == ["stock", "contextpilot", "contextpilot"]


def test_one_lucky_run_of_another_does_not_make_it_the_strongest(found: Findings) -> None:
    steady, other = found.points["contextpilot", 9.0], found.points["stock", 9.0]
    calm, rough = steady.outcomes[0], other.outcomes[0]
    # Of its three runs one was as calm as the only one of the other.
    found.points["contextpilot", 9.0] = replace(steady, outcomes=(calm, *other.outcomes[1:]))
    found.points["stock", 9.0] = replace(other, outcomes=(rough,))
    strongest = found.strongest(9.0)
    assert strongest is not None
    assert strongest.arm == "contextpilot"
    assert found.baselines_run == "2 of 2, 1 of them on 3 seeds"


def test_a_request_without_a_first_token_counts_as_infinite(found: Findings) -> None:
    point = found.get("stock", 11.0)
    assert point is not None
    assert point.p99_s == float("inf")
    assert point.unfinished == 3 * 400


def test_percentiles_are_those_of_all_seeds_together(found: Findings) -> None:
    point = found.get("prism", 9.0)
    assert point is not None
    assert point.requests == 2_400
    assert point.ttft_s()["P50"] == pytest.approx(0.2, rel=0.1)
    assert point.p99_s == pytest.approx(0.396, rel=0.02)


def test_a_ratio_has_an_interval_over_seeds_around_it(found: Findings) -> None:
    ours, theirs = found.get("prism", 9.0), found.get("contextpilot", 9.0)
    assert ours is not None
    assert theirs is not None
    interval = p99_interval(ours, theirs)
    assert isinstance(interval, Interval)
    assert interval.low <= interval.value <= interval.high < 0.6
    assert p99_against(ours, theirs) == pytest.approx(0.5, rel=0.03)


def test_the_mean_of_ratios_has_an_interval_over_seeds_too(found: Findings) -> None:
    pairs = [(found.points["prism", load], found.points["contextpilot", load]) for load in found.loads]
    interval = mean_p99_interval(pairs)
    assert interval is not None
    assert interval.value == pytest.approx((0.6 + 0.5 + 0.5) / 3, rel=0.03)
    assert interval.low < interval.value < interval.high
    ours, theirs = pairs[0]
    assert mean_p99_interval([*pairs[1:], (ours.of([1, 2]), theirs)]) is None, "two seeds in common"
    assert mean_p99_interval([]) is None
    infinite = (found.points["prism", 11.0], found.points["stock", 11.0])
    assert mean_p99_interval([*pairs, infinite]) == interval


def test_a_ratio_is_over_the_seeds_that_both_have(found: Findings) -> None:
    ours, theirs = found.get("prism", 9.0), found.get("contextpilot", 9.0)
    assert ours is not None
    assert theirs is not None
    assert p99_against(ours, theirs.of([2])) == p99_against(ours.of([2]), theirs.of([2]))
    assert p99_against(ours.of([1]), theirs.of([2])) is None, "none in common"


def test_a_load_without_the_requests_for_a_p99_says_nothing_of_it(tmp_path: Path) -> None:
    p99_ms = {("stock", 5.0): 300, ("prism", 5.0): 200}
    store = store_with(tmp_path / "cells", p99_ms, {"stock": 20.0, "prism": 40.0}, requests=100)
    found = Findings.of(PANEL, SEEDS[:1], store)
    ours, strongest = found.get("prism", 5.0), found.strongest(5.0)
    assert ours is not None
    assert strongest is not None
    assert p99_against(ours, strongest) is None
    assert found.at_least_per_s("prism") is None


def test_there_is_no_interval_with_an_infinite_one(found: Findings) -> None:
    ours, theirs = found.get("prism", 11.0), found.get("stock", 11.0)
    assert ours is not None
    assert theirs is not None
    assert p99_interval(ours, theirs) is None


def test_a_sustained_load_lies_between_the_last_good_and_the_first_bad(found: Findings) -> None:
    # P99 is about 0.79 s at 9/s and 1.19 s at 11/s: 1 s lies half way.
    assert found.sustained_per_s("contextpilot") == pytest.approx(10.05, abs=0.1)
    assert found.sustained_per_s("prism") is None
    assert found.strongest_sustained() == ("contextpilot", found.sustained_per_s("contextpilot"))


def test_more_than_was_run_is_never_said_to_be_sustained(found: Findings) -> None:
    assert found.at_least_per_s("prism") == 11.0
    del found.points["prism", 11.0]
    assert found.at_least_per_s("prism") == 9.0
    lines = {goal.where.partition(": ")[2]: goal for goal in goals({"load": [found]})}
    assert lines["load sustained against the strongest"].here.startswith("> 9/s against 10.0")


def test_a_baseline_that_was_not_run_until_it_failed_leaves_the_strongest_open(found: Findings) -> None:
    for load in found.loads:
        found.points["stock", load] = found.points["prism", load]
    assert found.strongest_sustained() is None


def test_goals_say_what_was_found(found: Findings) -> None:
    lines = {goal.where.partition(": ")[2]: goal for goal in goals({"load": [found]})}
    assert lines["hit rate against the strongest"].here == f"{(20 + 7 + 7) / 3:+.1f}"
    assert lines["P99 against the strongest, mean over the loads (3)"].here.startswith("−")
    assert "> 11/s" in lines["load sustained against the strongest"].here
    assert {goal.seeds for goal in lines.values()} == {"3"}
    assert {goal.baselines for goal in lines.values()} == {"2 of 2"}
    assert lines["hit rate against the strongest"].reached
    assert lines["load sustained against the strongest"].reached is False, "11/s against 10.05/s"
    assert "(seed by seed −" in lines["P99 against the strongest, mean over the loads (3)"].here


def test_a_baseline_that_was_not_run_at_every_load_does_not_count_as_run(found: Findings) -> None:
    del found.points["stock", 9.0]
    assert found.baselines_run == "1 of 2"


def test_one_arm_alone_compares_with_nothing(found: Findings) -> None:
    for arm, load in list(found.points):
        if arm != "prism":
            del found.points[arm, load]
    assert not found.compares


def test_pages_are_written_for_what_was_run_only(tmp_path: Path) -> None:
    panel = STUDIES["fixed"].panels[0]
    store = CellStore(tmp_path / "cells")
    for arm in ("stock", "prism"):
        cell = panel.cell(arm, panel.loads_per_s[0], 1)
        store.put(Outcome(cell.key, cell.definition(), summary(800, 0, 17.0), [100] * 800))
    write_pages(tmp_path, len(SEEDS))
    assert sorted(path.name for path in tmp_path.glob("*.md")) == ["fixed.md", "index.md"]
    assert "| 7 | **prism** | 1 | 800 | 17.0 |" in (tmp_path / "fixed.md").read_text()


def test_pages_of_equal_cells_are_equal(tmp_path: Path) -> None:
    panel = STUDIES["load"].panels[0]
    for folder in (tmp_path / "one", tmp_path / "two"):
        store = CellStore(folder / "cells")
        for load in panel.loads_per_s[:2]:
            for arm in ("stock", "prism"):
                cell = panel.cell(arm, load, 1)
                store.put(Outcome(cell.key, cell.definition(), summary(800, 0, 40.0), list(range(800))))
        write_pages(folder, len(SEEDS))
    pictures = [(tmp_path / name / "pictures" / "load-rag-qwen3-4b.svg").read_bytes() for name in ("one", "two")]
    assert pictures[0] == pictures[1]
