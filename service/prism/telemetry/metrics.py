"""PRISM's Prometheus metrics: their names, their labels and how they are filled. The only place that defines them.

The serving process fills them, from what EngineCore tells it and from each request's timeline when it has ended; what
a time to first token is stands in `timeline` alone. All values of all labels come from fixed sets and are there from
the first scrape on, at 0: a rate works from the start, and no client can make a new series.

The registry is PRISM's own. It takes part in the process's default one, whose `/metrics` holds vLLM's and KServe's
metrics too; alone it is what the admin port shows.
"""

from __future__ import annotations

from typing import Final

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
RESULTS: Final = ("exported", "dropped", "failed")

REFUSAL_REASONS: Final = (
    "invalid_request", "unauthorized", "unknown_model", "too_large", "queue_full", "prompt_tokens_full", "deadline",
    "loading", "draining", "engine_dead", "other",
)  # fmt: skip
"""Why a request was refused; `other` for whatever vLLM refuses with a status of its own."""

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
