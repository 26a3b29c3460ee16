"""PRISM's Prometheus metrics: their names, their labels and how they are filled. The only place that defines them.

The serving process fills them, from what EngineCore tells it and from each request's timeline; what a time to first
token is stands in `timeline` alone. All values of all labels come from fixed sets and are there from
the first scrape on, at 0: a rate works from the start, and no client can make a new series.

The registry is PRISM's own. It takes part in the process's default one, whose `/metrics` holds vLLM's and KServe's
metrics too; alone it is what the admin port shows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Final, Generic, Protocol, TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client import generate_latest as as_text
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from prism.config.document import REASONS
from prism.telemetry.timeline import Outcome, RequestTimeline, TtftEnd
from prism.telemetry.window import MetricsWindow

M = TypeVar("M", Counter, Gauge, Histogram)
Labels = Mapping[str, Sequence[str]]
"""Names of labels besides `model_name`, and all values of each."""

TEXT_FORMAT: Final = CONTENT_TYPE_LATEST
"""Content type of `Metrics.text`."""

# ---- names ---------------------------------------------------------------------------------------------------------

TTFT: Final = "prism_ttft_seconds"
TTFT_PART: Final = "prism_ttft_part_seconds"
PROMPT_TOKENS: Final = "prism_prompt_tokens_total"
EVICTIONS: Final = "prism_evictions_total"
WAITING_REQUESTS: Final = "prism_waiting_requests"
OLDEST_WAIT: Final = "prism_oldest_wait_seconds"
COLD_LANE_OVERTAKES: Final = "prism_cold_lane_overtakes"
SCHEDULER_PASS: Final = "prism_scheduler_pass_seconds"
SETTINGS_GENERATION: Final = "prism_settings_generation"
SETTINGS_REFUSALS: Final = "prism_settings_refusals_total"
ARRIVED_REQUESTS: Final = "prism_arrived_requests_total"
OPEN_REQUESTS: Final = "prism_open_requests"
REQUESTS: Final = "prism_requests_total"
REFUSED_REQUESTS: Final = "prism_refused_requests_total"
SPANS: Final = "prism_spans_total"
LOST_FACTS: Final = "prism_lost_facts_total"

# ---- labels --------------------------------------------------------------------------------------------------------

MODEL_NAME: Final = "model_name"
LANE: Final = "lane"
PART: Final = "part"
KIND: Final = "kind"
CACHED: Final = "cached"
CLASS: Final = "class"
REASON: Final = "reason"
OUTCOME: Final = "outcome"
RESULT: Final = "result"

LANES: Final = ("hot", "cold", "none")
"""`none` also for requests whose lane is not known, since the fact about it was lost."""

PARTS: Final = ("admission_wait", "prefill", "first_token")
KINDS: Final = ("system", "tool_schema", "document", "tool_output", "history", "private", "plain")
"""Segment kinds; `plain` for prompt tokens of no segment."""

CLASSES: Final = ("unhashed", "private", "unprotected", "protected", "lru")
"""Eviction classes; `lru` for blocks given up under the retention policy LRU."""

OUTCOMES: Final = ("finished", "failed", "refused", "cancelled")
LOSSES: Final = ("channel_full", "gap", "unreadable", "unclaimed")
"""Where messages from the engines were lost: the sender found the channel full (facts); numbers are missing (batches);
not of this version (batches); about requests that nobody claimed (requests)."""

RESULTS: Final = ("exported", "dropped", "failed")

REFUSAL_REASONS: Final = (
    "invalid_request", "unauthorized", "unknown_model", "too_large", "upload_stalled", "queue_full",
    "prompt_tokens_full", "deadline", "loading", "draining", "engine_dead", "engine_hung", "other",
)  # fmt: skip
"""Why a request was refused; `other` for whatever vLLM refuses with a status of its own."""

_TRUTH: Final = ("true", "false")
_NO_LABELS: Final[Labels] = {}

# ---- buckets -------------------------------------------------------------------------------------------------------

SECONDS_BUCKETS: Final = (
    .001, .0016, .0025, .004, .0063,
    .01, .0125, .016, .02, .025, .032, .04, .05, .063, .08,
    .1, .125, .16, .2, .25, .32, .4, .5, .63, .8,
    1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.3, 8,
    10, 16, 25, 40, 63, 100, 120,
)  # fmt: skip
"""Of TTFT and its parts: preferred numbers (ISO 3), ten to a decade from 10 ms to 10 s and five outside.

A quantile is interpolated within one bucket, so between 10 ms and 10 s a P99 is off by a quarter at the very most,
and a change of a tenth, which is what a canary is judged by, moves it.
"""

PASS_SECONDS_BUCKETS: Final = (.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25)  # fmt: skip
"""Of the time PRISM itself takes in a scheduler pass, whose budget is 2 ms."""


class EngineReport(Protocol):
    """The state of one engine after a pass, and what it counted since its last report; its attributes as in
    `prism.engine.wire.Gauges`."""

    @property
    def at(self) -> float: ...
    @property
    def waiting_by_lane(self) -> Mapping[str, int]: ...
    @property
    def oldest_wait_seconds(self) -> float: ...
    @property
    def cold_overtakes(self) -> int: ...
    @property
    def evictions(self) -> Mapping[str, int]: ...
    @property
    def pass_seconds(self) -> Sequence[float]: ...
    @property
    def running(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def total_blocks(self) -> int: ...


class Metrics:
    """The metrics of one serving process.

    Args:
        model_name: the served base model. Requests for its adapters count under it, as in vLLM's own metrics: adapters
            come and go by name, and series must not.
        clock: monotonic seconds, the one of `EngineReport.at`.
    """

    def __init__(self, model_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.model_name = model_name
        self.registry = CollectorRegistry(auto_describe=True)
        self.window = MetricsWindow(self.registry)
        self._clock = clock
        self._reports: dict[int, EngineReport] = {}
        self._open = 0
        self._ttft_counted: set[RequestTimeline] = set()
        self._arrived = self._counter(ARRIVED_REQUESTS, "Requests for inference that arrived.")
        self._ended = self._counter(REQUESTS, "Requests that ended, by how.", {OUTCOME: OUTCOMES})
        self._refused = self._counter(REFUSED_REQUESTS, "Refused requests, by why.", {REASON: REFUSAL_REASONS})
        self._ttft = self._histogram(TTFT, "Time to first token, from arrival.", {LANE: LANES})
        self._parts = self._histogram(TTFT_PART, "The parts of it.", {PART: PARTS, LANE: LANES})
        self._tokens = self._counter(
            PROMPT_TOKENS,
            "Prompt tokens of admitted requests, by segment kind and by whether the prefix cache had them.",
            {KIND: KINDS, CACHED: _TRUTH},
        )
        self._evictions = self._counter(EVICTIONS, "KV blocks given up, by what they held.", {CLASS: CLASSES})
        self._pass = self._histogram(
            SCHEDULER_PASS, "Time that PRISM itself takes in a scheduler pass.", {}, PASS_SECONDS_BUCKETS
        )
        self._generation = self._gauge(SETTINGS_GENERATION, "Generation of the settings in force in all engines.")
        self._settings_refusals = self._counter(
            SETTINGS_REFUSALS, "Settings documents that were not taken, by why.", {REASON: REASONS}
        )
        self._gauge_live_state()

    def publish(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Take part in another registry: by default the process's own, which the serving port shows.

        In prometheus-client's multiprocess mode too: what is read there are this process's values, not files.
        """
        registry.register(self.registry)

    def sample(self) -> None:
        """Keep a reading for `window`, if it is time for one; called every second or so."""
        self.window.sample(self._clock())

    def text(self) -> bytes:
        """These metrics alone, in Prometheus's text format."""
        return as_text(self.registry)

    # ---- what the serving process sees -----------------------------------------------------------------------------

    def request_arrived(self) -> None:
        self._open += 1
        self._arrived().inc()

    def request_goes_on(self, timeline: RequestTimeline) -> None:
        """Count the time to first token of a stream that has begun, as soon as its parts are known: its end may be far.

        Asked again and again, it counts once. What does not stream is counted at its end, which comes soon after.
        """
        if timeline in self._ttft_counted or timeline.ttft_end is not TtftEnd.FIRST_CHUNK_SENT:
            return
        if timeline.ttft() is not None:
            self._ttft_counted.add(timeline)
            self._observe_ttft(timeline)

    def request_ended(self, timeline: RequestTimeline) -> None:
        """Count a request that has ended, and its time to first token if it had one that is not counted yet."""
        outcome = timeline.outcome
        if outcome is None:
            raise ValueError("a request is counted once it has ended")
        self._open -= 1
        self._ended(outcome).inc()
        if outcome is Outcome.REFUSED:
            self._refused(_one_of(REFUSAL_REASONS, timeline.reason, "other")).inc()
        if timeline in self._ttft_counted:
            self._ttft_counted.discard(timeline)
        else:
            self._observe_ttft(timeline)

    def _observe_ttft(self, timeline: RequestTimeline) -> None:
        total, split = timeline.ttft_us, timeline.ttft()
        lane = _one_of(LANES, timeline.admission.lane if timeline.admission else None, "none")
        if total is not None:
            self._ttft(lane).observe(total / 1e6)
        if split is not None:
            for part, seconds in zip(PARTS, (split.admission_wait, split.prefill, split.first_token), strict=True):
                self._parts(part, lane).observe(seconds)

    # ---- what engines say ------------------------------------------------------------------------------------------

    def request_admitted(self, cached_by_kind: Mapping[str, int], tokens_by_kind: Mapping[str, int]) -> None:
        """Count the prompt of a request at its first admission; a resumption finds its own tokens, which is no hit."""
        for kind, tokens in tokens_by_kind.items():
            cached, known = cached_by_kind.get(kind, 0), _one_of(KINDS, kind, "plain")
            self._tokens(known, "true").inc(cached)
            self._tokens(known, "false").inc(tokens - cached)

    def engine_reported(self, engine: int, report: EngineReport) -> None:
        self._reports[engine] = report
        for name, blocks in report.evictions.items():
            self._evictions(_one_of(CLASSES, name, "unprotected")).inc(blocks)
        observe = self._pass().observe
        for seconds in report.pass_seconds:
            observe(seconds)

    def engines_gone(self) -> None:
        """The engines have died or were stopped: nothing waits in them any more."""
        self._reports.clear()

    def settings_in_force(self, generation: int) -> None:
        self._generation().set(generation)

    def settings_refused(self, engine: int, reason: str) -> None:
        """Every engine reads the same document, so a refusal counts as the first engine's alone."""
        if engine == 0:
            self._settings_refusals(_one_of(REASONS, reason, "invalid_value")).inc()

    # ---- what is asked for at each scrape --------------------------------------------------------------------------

    def count_spans(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """From now on show what became of spans, by result."""
        about = "Spans: exported, dropped before export (queue full), failed to be exported."
        self._read_at_scrape(SPANS, about, RESULT, RESULTS, counts)

    def count_lost_facts(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """From now on show how much of what engines said was lost, by where."""
        about = "Messages from the engines that were lost, by where; traces of that time may be incomplete."
        self._read_at_scrape(LOST_FACTS, about, REASON, LOSSES, counts)

    def waiting(self, lane: str) -> int:
        """Waiting requests of one lane, over all engines."""
        return sum(report.waiting_by_lane.get(lane, 0) for report in self._reports.values())

    def oldest_wait_seconds(self) -> float:
        """Age of the oldest waiting request; it goes on ageing while a long step keeps its engine from reporting."""
        now = self._clock()
        ages = (
            report.oldest_wait_seconds + max(0.0, now - report.at)
            for report in self._reports.values()
            if any(report.waiting_by_lane.values())
        )
        return max(ages, default=0.0)

    def cold_lane_overtakes(self) -> int:
        """The most admissions in a row that have passed the oldest request of an engine."""
        return max((report.cold_overtakes for report in self._reports.values()), default=0)

    def _gauge_live_state(self) -> None:
        under_way = self._gauge(OPEN_REQUESTS, "Requests that arrived and are not counted as ended.")
        under_way().set_function(self.open_requests)
        waiting = self._gauge(WAITING_REQUESTS, "Requests waiting for admission, by lane.", {LANE: LANES})
        for lane in LANES:
            waiting(lane).set_function(partial(self.waiting, lane))
        oldest = self._gauge(OLDEST_WAIT, "Age of the oldest waiting request.")
        oldest().set_function(self.oldest_wait_seconds)
        overtakes = self._gauge(COLD_LANE_OVERTAKES, "Admissions in a row that passed the oldest waiting request.")
        overtakes().set_function(self.cold_lane_overtakes)

    def open_requests(self) -> int:
        """Requests that arrived and are not counted as ended."""
        return self._open

    def running(self) -> int:
        """Running requests, over all engines."""
        return sum(report.running for report in self._reports.values())

    def blocks(self) -> tuple[int, int]:
        """Free and all blocks of the KV cache, over all engines."""
        reports = self._reports.values()
        return sum(report.free_blocks for report in reports), sum(report.total_blocks for report in reports)

    def _read_at_scrape(
        self, name: str, about: str, label: str, values: Sequence[str], counts: Callable[[], Mapping[str, int]]
    ) -> None:
        self.registry.register(_ReadAtScrape(name, about, self.model_name, label, values, counts))

    # ---- families with all their series ----------------------------------------------------------------------------

    def _counter(self, name: str, about: str, labels: Labels = _NO_LABELS) -> Family[Counter]:
        return Family(Counter(name, about, [MODEL_NAME, *labels], registry=self.registry), self.model_name, labels)

    def _gauge(self, name: str, about: str, labels: Labels = _NO_LABELS) -> Family[Gauge]:
        return Family(Gauge(name, about, [MODEL_NAME, *labels], registry=self.registry), self.model_name, labels)

    def _histogram(
        self, name: str, about: str, labels: Labels, buckets: Sequence[float] = SECONDS_BUCKETS
    ) -> Family[Histogram]:
        made = Histogram(name, about, [MODEL_NAME, *labels], registry=self.registry, buckets=buckets)
        return Family(made, self.model_name, labels)


class Family(Generic[M]):
    """One metric with all of its series made: called with a value of each label, it gives that series."""

    def __init__(self, metric: M, model_name: str, labels: Labels) -> None:
        self._series: dict[tuple[str, ...], M] = {
            values: metric.labels(model_name, *values) for values in product(*labels.values())
        }

    def __call__(self, *values: str) -> M:
        return self._series[values]


class _ReadAtScrape(Collector):
    """A counter that is kept elsewhere."""

    def __init__(
        self,
        name: str,
        about: str,
        model_name: str,
        label: str,
        values: Sequence[str],
        counts: Callable[[], Mapping[str, int]],
    ) -> None:
        self._name = name
        self._about = about
        self._model_name = model_name
        self._label = label
        self._values = values
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._about, labels=[MODEL_NAME, self._label])
        counts = self._counts()
        for value in self._values:
            family.add_metric([self._model_name, value], counts.get(value, 0))
        return [family]


def _one_of(known: Sequence[str], value: str | None, otherwise: str) -> str:
    return value if value is not None and value in known else otherwise
