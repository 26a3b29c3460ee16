"""What a benchmark's cells say, and how far: a table, Markdown, JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prism.bench.estimates import BLOCK, LEVELS, Interval, paired_ratio, percentiles, seconds_text, statistics_for
from prism.bench.http.load import Reply
from prism.bench.http.run import Cell, Cold, Plan, paired, windows
from prism.bench.http.servers import Server

LATE_S = 0.05
"""A client that sends its 99th percentile request later than this after it was due is part of what it measures."""

_COLUMNS = ("sessions/s", "arm", "requests", "failed", *LEVELS, "mean", "cached", "tokens/s")


@dataclass(frozen=True, slots=True)
class ArmSummary:
    """One arm at one rate, over all repeats; of the requests in the windows.

    Attributes:
        failed: requests without a whole answer.
        ttft_s: percentiles by name, as far as the samples carry them; a request without a first token counts as
            infinite.
        mean_ttft_s: of those that got one; None if none did.
        hit_rate: prompt tokens from the cache of all prompt tokens, 0 to 1; None where the server does not say.
        output_tokens_per_s: of whole cells, warm-up included.
        late_p99_s: how long after it was due a request was sent, 99th percentile.
        errors: how often each failure was met, the most frequent first.
    """

    rate: float
    arm: str
    requests: int
    failed: int
    ttft_s: Mapping[str, float]
    mean_ttft_s: float | None
    hit_rate: float | None
    output_tokens_per_s: float
    late_p99_s: float
    errors: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Comparison:
    """TTFT of an arm over that of the first arm, at one rate; of the pairs that both answered.

    Attributes:
        pairs, left_out: requests that both answered; requests of both windows that one of them did not.
        ratios: by what is compared: `mean` and percentiles, as far as the pairs carry them.
    """

    rate: float
    arm: str
    to: str
    pairs: int
    left_out: int
    ratios: Mapping[str, Interval]


@dataclass(frozen=True, slots=True)
class Results:
    """A benchmark's cells with what they amount to."""

    plan: Plan
    cells: Sequence[Cell]

    @property
    def summaries(self) -> list[ArmSummary]:
        return [
            summarize(rate, server.name, self._of(rate, server.name))
            for rate in self.plan.rates
            for server in self.plan.servers
        ]

    @property
    def comparisons(self) -> list[Comparison]:
        first, *others = self.plan.servers
        return [
            compare(rate, self._of(rate, other.name), self._of(rate, first.name))
            for rate in self.plan.rates
            for other in others
        ]

    @property
    def all_failed(self) -> bool:
        return all(reply.error for cell in self.cells for reply in cell.replies)

    def _of(self, rate: float, arm: str) -> list[Cell]:
        return [cell for cell in self.cells if (cell.rate, cell.server) == (rate, arm)]


def summarize(rate: float, arm: str, cells: Sequence[Cell]) -> ArmSummary:
    """An arm's cells at one rate."""
    replies = windows(cells)
    failed = [reply.error for reply in replies if reply.error]
    answered = [reply.ttft_s for reply in replies if reply.ttft_s is not None]
    took = sum(cell.took_s for cell in cells)
    tokens = sum(reply.output_tokens for cell in cells for reply in cell.replies)
    late = sorted((reply.sent or reply.due) - reply.due for reply in replies)
    return ArmSummary(
        rate,
        arm,
        len(replies),
        len(failed),
        percentiles([math.inf if reply.ttft_s is None else reply.ttft_s for reply in replies]),
        sum(answered) / len(answered) if answered else None,
        hitrate_text(replies),
        tokens / took if took else 0.0,
        late[int(0.99 * (len(late) - 1))] if late else 0.0,
        dict(Counter(failed).most_common()),
    )


def hitrate_text(replies: Sequence[Reply]) -> float | None:
    """Prompt tokens from the cache of all prompt tokens; None if no answer says."""
    told = [(reply.cached_tokens, reply.prompt_tokens) for reply in replies if reply.cached_tokens is not None]
    prompt = sum(tokens for _, tokens in told)
    return sum(cached or 0 for cached, _ in told) / prompt if prompt else None


def compare(rate: float, ours: Sequence[Cell], theirs: Sequence[Cell]) -> Comparison:
    """An arm's cells against the first arm's, request by request."""
    both = paired(ours, theirs)
    times = [(a.ttft_s, b.ttft_s) for a, b in both if a.ttft_s is not None and b.ttft_s is not None]
    ratios: dict[str, Interval] = {}
    if len(times) >= 2 * BLOCK:
        mine, first = [pair[0] for pair in times], [pair[1] for pair in times]
        ratios = {name: paired_ratio(mine, first, statistic) for name, statistic in statistics_for(len(times)).items()}
    arm, to = (cells[0].server if cells else "" for cells in (ours, theirs))
    return Comparison(rate, arm, to, len(times), len(both) - len(times), ratios)


def rows(results: Results) -> list[list[str]]:
    """The table's cells, as text, under `_COLUMNS`."""
    return [
        [
            rate_text(results.plan, one.rate),
            one.arm,
            str(one.requests),
            str(one.failed),
            *(seconds_text(one.ttft_s.get(level)) for level in LEVELS),
            seconds_text(one.mean_ttft_s),
            "not said" if one.hit_rate is None else f"{one.hit_rate:.1%}",
            f"{one.output_tokens_per_s:.0f}",
        ]
        for one in results.summaries
    ]


def sentences(results: Results) -> list[str]:
    """What compares with what, what failed, and what the figures rest on."""
    said = [_compared(results.plan, one) for one in results.comparisons]
    for one in results.summaries:
        said += [f"{one.arm} at {rate_text(results.plan, one.rate)}: {n} × {text}" for text, n in one.errors.items()]
    said += _doubts(results)
    said.append(_conditions(results))
    return said


def _compared(plan: Plan, one: Comparison) -> str:
    head = f"{one.arm} over {one.to} at {rate_text(plan, one.rate)}, TTFT of {one.pairs} pairs"
    head += f" ({one.left_out} left out, not answered by both)" if one.left_out else ""
    if not one.ratios:
        return f"{head}: too few for an interval"
    return f"{head}: " + ", ".join(f"{name} × {ratio}" for name, ratio in one.ratios.items())


def _doubts(results: Results) -> list[str]:
    late = [one for one in results.summaries if one.late_p99_s > LATE_S]
    said = [
        f"The client itself sent late ({one.arm} at {rate_text(results.plan, one.rate)}: 99 % within "
        f"{one.late_p99_s:.2f} s of their moment): give it a processor of its own."
        for one in late
    ]
    silent = sorted({one.arm for one in results.summaries if one.hit_rate is None})
    if silent:
        said.append(
            f"{', '.join(silent)}: no cached tokens in usage; vLLM says them with --enable-prompt-tokens-details."
        )
    return said


def _conditions(results: Results) -> str:
    plan, ways = results.plan, {cell.cold for cell in results.cells}
    loop = f"{plan.together} sessions kept under way" if plan.together else "open loop"
    cold = {Cold.RESET: "cache emptied before each cell", Cold.MARKER: "a line of its own before each cell's prompts"}
    return (
        f"Seconds from the moment a request was due; {loop}, {plan.seconds:g} s, the first {plan.warm_up_s:g} s left "
        f"out; repeats: {plan.repeats}, from seed {plan.seed}, arms in turn; "
        f"{', '.join(cold[way] for way in sorted(ways))}. "
        "Percentiles without five samples beyond them are left out; a request without a first token counts as "
        "infinite. Ratios: 95 % intervals, paired bootstrap (BCa) over blocks of eight requests."
    )


def table(results: Results) -> RenderableType:
    """For a terminal."""
    shown = Table(title="time to first token, seconds", box=box.SIMPLE_HEAD)
    for column in _COLUMNS:
        shown.add_column(column, justify="left" if column == "arm" else "right", no_wrap=column == "arm")
    for row in rows(results):
        shown.add_row(*row)
    *said, conditions = sentences(results)
    return Group(shown, *(Text(line) for line in said), Text(conditions, "bright_black"))


def markdown(results: Results) -> str:
    """For a page."""
    lines = [list(_COLUMNS), ["---"] * len(_COLUMNS), *rows(results)]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return text + "\n\n" + "\n".join(f"- {line}" for line in sentences(results)) + "\n"


def as_json(results: Results) -> dict[str, Any]:
    """Everything, each request included; a percentile that is infinite is null."""
    plan = results.plan
    return {
        "plan": {
            "arms": [_described(server) for server in plan.servers],
            "workload": {"kind": type(plan.workload).__name__, **_plain(plan.workload)},
            **{name: getattr(plan, name) for name in ("rates", "seconds", "warm_up_s", "repeats", "together", "seed")},
        },
        "summaries": [
            {**asdict(one), "ttft_s": {name: _finite(value) for name, value in one.ttft_s.items()}}
            for one in results.summaries
        ],
        "comparisons": [asdict(one) for one in results.comparisons],
        "cells": [
            {**asdict(cell), "replies": [{**asdict(reply), "text": None} for reply in cell.replies]}
            for cell in results.cells
        ],
    }


def _described(server: Server) -> dict[str, str | None]:
    front = None if server.front is list else getattr(server.front, "__name__", str(server.front))
    return {"name": server.name, "url": server.url, "admin_url": server.admin_url, "front": front}


def _plain(workload: Any) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int | float | None) else str(value) for name, value in asdict(workload).items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def rate_text(plan: Plan, rate: float) -> str:
    """A cell's load, as a reader calls it."""
    return f"{plan.together} together" if plan.together else f"{rate:g}/s"
