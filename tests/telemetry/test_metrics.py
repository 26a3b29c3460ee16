"""The metrics: what is there from the start, what each event changes, and that nobody outside can make a series."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from prism.core.segments import SegmentKind
from prism.core.tree import CLASS_NAMES
from prism.telemetry import metrics as m
from prism.telemetry.timeline import Admission, Outcome, PartName, RequestTimeline

MakeTimeline = Callable[..., RequestTimeline]
T = 1000.0


@dataclass(frozen=True)
class Report:
    """What an engine says of itself."""

    at: float = 10.0
    waiting_by_lane: dict[str, int] = field(default_factory=dict)
    oldest_wait_seconds: float = 0.0
    cold_overtakes: int = 0
    evictions: dict[str, int] = field(default_factory=dict)
    pass_seconds: list[float] = field(default_factory=list)
    running: int = 0
    free_blocks: int = 0
    total_blocks: int = 0


@pytest.fixture
def now() -> list[float]:
    return [10.0]


@pytest.fixture
def metrics(now: list[float]) -> m.Metrics:
    return m.Metrics("smol", clock=lambda: now[0])


def value(metrics: m.Metrics, name: str, **labels: str) -> float:
    found = metrics.registry.get_sample_value(name, {"model_name": "smol", **labels})
    assert found is not None, f"{name} {labels} is not there"
    return found


def series(metrics: m.Metrics) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in metrics.registry.collect()
        for sample in family.samples
    }


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        (m.PROMPT_TOKENS, {"kind": "document", "cached": "true"}),
        (m.EVICTIONS, {"class": "lru"}),
        (m.SETTINGS_REFUSALS, {"reason": "unknown_field"}),
        (m.REQUESTS, {"outcome": "cancelled"}),
        (m.REFUSED_REQUESTS, {"reason": "queue_full"}),
        (m.TTFT + "_count", {"lane": "cold"}),
        (m.TTFT_PART + "_count", {"lane": "hot", "part": "prefill"}),
        (m.WAITING_REQUESTS, {"lane": "hot"}),
    ],
)
def test_series_are_there_at_zero_from_the_first_scrape(metrics: m.Metrics, name: str, labels: dict[str, str]) -> None:
    assert value(metrics, name, **labels) == 0


def test_every_name_of_the_module_is_exposed_under_it(metrics: m.Metrics) -> None:
    metrics.count_spans(dict)
    metrics.count_lost_facts(dict)
    named = {text for text in vars(m).values() if isinstance(text, str) and text.startswith("prism_")}
    exposed = {sample[0] for sample in series(metrics)}
    assert named <= exposed | {name.removesuffix("_count") for name in exposed}


def test_the_page_of_the_docs_lists_each_metric_with_its_labels(metrics: m.Metrics, repository: Path) -> None:
    metrics.count_spans(dict)
    metrics.count_lost_facts(dict)
    page = (repository / "docs" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(prism_\w+)` \| (\w+) \|([^|]*)\|", page, re.MULTILINE)
    listed = {(name, kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    families = [family for family in metrics.registry.collect() if not family.name.endswith("_created")]
    assert listed == {(_exposed(family), family.type, _labels(family)) for family in families}


def _exposed(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> frozenset[str]:
    return frozenset(family.samples[0].labels) - {"model_name", "le"}


def test_every_series_names_its_model(metrics: m.Metrics) -> None:
    assert all(("model_name", "smol") in labels for _, labels in series(metrics))


def test_the_fixed_sets_are_those_of_the_code_that_decides() -> None:
    assert set(m.KINDS) == {kind.value for kind in SegmentKind} | {"plain"}
    assert set(m.CLASSES) == {*CLASS_NAMES, "lru"}
    assert set(m.OUTCOMES) == set(Outcome)
    assert tuple(PartName)[:3] == m.PARTS


def test_what_is_not_known_makes_no_series(metrics: m.Metrics, make_timeline: MakeTimeline) -> None:
    before = series(metrics)
    timeline = make_timeline(model="x" * 50)
    timeline.engine_added(T, "a").admitted(T, Admission("purple", "", "none", 0, 0, 1, 0, 0, (), 1))
    timeline.first_content_sent(T + 1, "a")
    timeline.refused(T + 2, 418, "teapot")
    metrics.request_ended(timeline)
    metrics.request_admitted({"novel": 1}, {"novel": 2})
    metrics.settings_refused(0, "because")
    metrics.engine_reported(0, Report(waiting_by_lane={"purple": 1}, evictions={"novel": 1}))
    assert series(metrics) == before


def test_a_finished_request_is_counted_with_its_ttft_and_its_parts(
    metrics: m.Metrics, finished: RequestTimeline
) -> None:
    metrics.request_ended(finished)
    parts = [value(metrics, m.TTFT_PART + "_sum", lane="hot", part=part) for part in m.PARTS]
    assert value(metrics, m.REQUESTS, outcome="finished") == 1
    assert parts == pytest.approx([0.2, 0.3, 0.01])
    assert value(metrics, m.TTFT + "_sum", lane="hot") == pytest.approx(sum(parts))


def test_a_stream_counts_once_its_first_chunk_is_out_and_not_again_at_its_end(
    metrics: m.Metrics, make_timeline: MakeTimeline, admission: Admission
) -> None:
    timeline = make_timeline()
    engine = timeline.engine_added(T, "a")
    engine.admitted(T + 0.2, admission)
    engine.prefilled(T + 0.5)
    counts = []
    for sent in (False, True, False):
        if sent:
            timeline.first_content_sent(T + 0.51, "a")
        metrics.request_goes_on(timeline)
        counts.append(value(metrics, m.TTFT + "_count", lane="hot"))
    timeline.finished(T + 99)
    metrics.request_ended(timeline)
    assert [*counts, value(metrics, m.TTFT + "_count", lane="hot")] == [0, 1, 1, 1]


def test_a_stream_whose_parts_are_not_known_yet_waits_for_them(metrics: m.Metrics, make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.first_content_sent(T + 0.51)
    metrics.request_goes_on(timeline)
    assert sum(value(metrics, m.TTFT + "_count", lane=lane) for lane in m.LANES) == 0


def test_a_request_that_never_had_a_first_token_has_no_ttft(metrics: m.Metrics, make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.cancelled(T + 60)
    metrics.request_ended(timeline)
    assert value(metrics, m.REQUESTS, outcome="cancelled") == 1
    assert sum(value(metrics, m.TTFT + "_count", lane=lane) for lane in m.LANES) == 0


def test_without_the_facts_that_split_it_a_ttft_counts_whole_and_in_no_lane(
    metrics: m.Metrics, make_timeline: MakeTimeline
) -> None:
    timeline = make_timeline()
    timeline.first_content_sent(T + 0.5)
    timeline.finished(T + 1)
    metrics.request_ended(timeline)
    assert value(metrics, m.TTFT + "_count", lane="none") == 1
    assert value(metrics, m.TTFT_PART + "_count", lane="none", part="prefill") == 0


@pytest.mark.parametrize(("reason", "counted"), [("queue_full", "queue_full"), ("418", "other"), (None, "other")])
def test_a_refusal_is_counted_by_its_reason(
    metrics: m.Metrics, make_timeline: MakeTimeline, reason: str | None, counted: str
) -> None:
    timeline = make_timeline()
    timeline.outcome, timeline.reason = Outcome.REFUSED, reason
    metrics.request_ended(timeline)
    assert value(metrics, m.REFUSED_REQUESTS, reason=counted) == 1


def test_a_request_is_counted_once_it_has_ended(metrics: m.Metrics, make_timeline: MakeTimeline) -> None:
    with pytest.raises(ValueError, match="has ended"):
        metrics.request_ended(make_timeline())


def test_arrived_is_ended_and_open(metrics: m.Metrics, make_timeline: MakeTimeline) -> None:
    ends: list[Callable[[RequestTimeline], None]] = [
        lambda t: t.finished(T + 1),
        lambda t: t.failed(T + 1, 500, "x"),
        lambda t: t.refused(T + 1, 429, "queue_full"),
        lambda t: t.cancelled(T + 1),
    ]
    for _ in range(7):
        metrics.request_arrived()
    for end in ends:
        timeline = make_timeline()
        end(timeline)
        metrics.request_ended(timeline)
    counted = [value(metrics, m.REQUESTS, outcome=outcome) for outcome in m.OUTCOMES]
    assert (counted, value(metrics, m.ARRIVED_REQUESTS), value(metrics, m.OPEN_REQUESTS)) == ([1, 1, 1, 1], 7, 3)


def test_prompt_tokens_are_counted_by_kind_and_by_cached(metrics: m.Metrics) -> None:
    metrics.request_admitted({"document": 64, "private": 0}, {"document": 100, "private": 20})
    got = {(k, c): value(metrics, m.PROMPT_TOKENS, kind=k, cached=c) for k in m.KINDS for c in ("true", "false")}
    assert {key: tokens for key, tokens in got.items() if tokens} == {
        ("document", "true"): 64,
        ("document", "false"): 36,
        ("private", "false"): 20,
    }


def test_engines_add_up_and_the_worst_one_speaks_for_waits(metrics: m.Metrics) -> None:
    metrics.engine_reported(0, Report(10.0, {"hot": 3, "cold": 1}, 7.0, 2))
    metrics.engine_reported(1, Report(10.0, {"hot": 4}, 2.0, 5))
    assert [value(metrics, m.WAITING_REQUESTS, lane=lane) for lane in m.LANES] == [7, 1, 0]
    assert (value(metrics, m.OLDEST_WAIT), value(metrics, m.COLD_LANE_OVERTAKES)) == (7.0, 5)


def test_counts_of_reports_are_deltas_and_add_up(metrics: m.Metrics) -> None:
    for _ in range(3):
        metrics.engine_reported(0, Report(evictions={"private": 5, "lru": 1}, pass_seconds=[0.002, 0.004]))
    assert [value(metrics, m.EVICTIONS, **{"class": name}) for name in ("private", "lru")] == [15, 3]
    assert value(metrics, m.SCHEDULER_PASS + "_count") == 6
    assert value(metrics, m.SCHEDULER_PASS + "_sum") == pytest.approx(0.018)


def test_the_oldest_wait_grows_while_an_engine_is_silent(metrics: m.Metrics, now: list[float]) -> None:
    metrics.engine_reported(0, Report(10.0, {"hot": 1}, 5.0))
    now[0] = 70.0
    assert value(metrics, m.OLDEST_WAIT) == 65.0


def test_nothing_waits_in_an_idle_engine_however_long_it_is_silent(metrics: m.Metrics, now: list[float]) -> None:
    metrics.engine_reported(0, Report(10.0, {"hot": 0, "cold": 0}))
    now[0] = 70.0
    assert value(metrics, m.OLDEST_WAIT) == 0.0


def test_nothing_waits_in_a_dead_engine(metrics: m.Metrics) -> None:
    metrics.engine_reported(0, Report(10.0, {"hot": 3}, 5.0, 2))
    metrics.engines_gone()
    waits = (value(metrics, m.WAITING_REQUESTS, lane="hot"), value(metrics, m.OLDEST_WAIT))
    assert waits == (0, 0)


def test_a_refused_document_counts_once_however_many_engines_read_it(metrics: m.Metrics) -> None:
    for engine in (0, 1, 2):
        metrics.settings_refused(engine, "not_yaml")
    assert value(metrics, m.SETTINGS_REFUSALS, reason="not_yaml") == 1


def test_what_is_kept_elsewhere_is_read_at_each_scrape(metrics: m.Metrics) -> None:
    spans = {"exported": 1}
    metrics.count_spans(lambda: spans)
    spans["exported"] = 5
    assert [value(metrics, m.SPANS, result=result) for result in m.RESULTS] == [5, 0, 0]


def test_the_text_holds_prisms_families_alone(metrics: m.Metrics) -> None:
    families = list(text_string_to_metric_families(metrics.text().decode()))
    assert families
    assert all(family.name.startswith("prism_") for family in families)


def test_published_metrics_take_part_in_another_registry(metrics: m.Metrics, finished: RequestTimeline) -> None:
    process = CollectorRegistry(auto_describe=True)
    metrics.publish(process)
    metrics.request_ended(finished)
    assert b'prism_requests_total{model_name="smol",outcome="finished"} 1.0' in generate_latest(process)


def test_multiprocess_mode_does_not_hide_them(tmp_path: Path, repository: Path) -> None:
    script = (
        "from prometheus_client import REGISTRY, generate_latest\n"
        "from prism.telemetry.metrics import Metrics\n"
        "metrics = Metrics('smol')\n"
        "metrics.publish()\n"
        "metrics.request_arrived()\n"
        "print(generate_latest(REGISTRY).decode())\n"
    )
    environ = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(repository / "service")}
    ended = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert 'prism_arrived_requests_total{model_name="smol"} 1.0' in ended.stdout
    assert 'prism_open_requests{model_name="smol"} 1.0' in ended.stdout


def test_buckets_of_seconds_ascend_and_are_a_quarter_apart_where_targets_lie() -> None:
    steps = [after / before for before, after in pairwise(m.SECONDS_BUCKETS) if 0.01 <= before < 10]
    assert (m.SECONDS_BUCKETS[0], m.SECONDS_BUCKETS[-1]) == (0.001, 120)
    assert min(steps) > 1
    assert max(steps) <= 1.29
    assert math.prod(steps) == pytest.approx(1000)
