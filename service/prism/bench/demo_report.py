"""What the demo's two runs show, and how much of it can be believed from so few requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from prism.bench.estimates import BEYOND, BLOCK, paired_ratio, percentiles
from prism.bench.http.load import PARTS, Reply

BAR_CELLS = 24

PART_COLOURS = {"admission_wait": "#e0a030", "prefill": "#3b6fb6", "first_token": "#b0479a"}
STYLES = {"admission_wait": "yellow", "prefill": "blue", "first_token": "magenta"}


@dataclass(frozen=True, slots=True)
class Run:
    """One policy under the load: what it is called, and what its clients saw."""

    name: str
    replies: Sequence[Reply]

    @property
    def ttft_s(self) -> list[float]:
        """Seconds, of the requests that got a first chunk."""
        return [reply.ttft_s for reply in self.replies if reply.ttft_s is not None]

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that came from the cache, 0 to 1."""
        prompt = sum(reply.prompt_tokens for reply in self.replies)
        return sum(reply.cached_tokens or 0 for reply in self.replies) / prompt if prompt else 0.0

    @property
    def failed(self) -> int:
        return sum(1 for reply in self.replies if reply.error)

    def mean_part_s(self, part: str) -> float:
        """Mean seconds of one part of TTFT, over the requests that report it."""
        known = [reply.parts[part] for reply in self.replies if part in reply.parts]
        return sum(known) / len(known) if known else 0.0


def report(stock: Run, prism: Run) -> RenderableType:
    """The closing tables and what they do and do not say."""
    return Group(_results(stock, prism), _split((stock, prism)), Text(_caution(stock, prism), "bright_black"))


def _results(stock: Run, prism: Run) -> Table:
    table = Table(title="time to first token, seconds, from the moment a request was due", box=box.SIMPLE_HEAD)
    shown = [percentiles(run.ttft_s) for run in (stock, prism)]
    levels = [level for level in shown[0] if level in shown[1]]
    for column in ("", "requests", *levels, "mean", "cached", "reordered", "failed", "lanes"):
        table.add_column(column, justify="left" if column in ("", "lanes") else "right", no_wrap=column == "")
    for run, found in zip((stock, prism), shown, strict=True):
        table.add_row(
            run.name,
            str(len(run.replies)),
            *(f"{found[level]:.2f}" for level in levels),
            f"{np.mean(run.ttft_s):.2f}" if run.ttft_s else "-",
            f"{run.hit_rate:.0%}",
            str(sum(reply.reordered for reply in run.replies)),
            str(run.failed),
            lanes(run.replies),
        )
    return table


def lanes(replies: Sequence[Reply]) -> str:
    """`hot 40, cold 5`."""
    counted = Counter(reply.lane for reply in replies if reply.lane)
    return ", ".join(f"{lane} {counted[lane]}" for lane in ("hot", "cold", "none") if counted[lane]) or "-"


def _split(runs: Sequence[Run]) -> Table:
    table = Table(title="where a first token's time went, mean seconds, as the server reports it", box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for part in PARTS:
        table.add_column(part.replace("_", " "), justify="right")
    table.add_column("", no_wrap=True)
    widest = max(sum(run.mean_part_s(part) for part in PARTS) for run in runs) or 1.0
    for run in runs:
        bar = Text()
        for part in PARTS:
            bar.append("━" * round(BAR_CELLS * run.mean_part_s(part) / widest), STYLES[part])
        table.add_row(run.name, *(f"{run.mean_part_s(part):.3f}" for part in PARTS), bar)
    return table


def _caution(stock: Run, prism: Run) -> str:
    both = [
        (before.ttft_s, after.ttft_s)
        for before, after in zip(stock.replies, prism.replies, strict=True)
        if before.ttft_s is not None and after.ttft_s is not None
    ]
    said = ""
    if len(both) >= 2 * BLOCK:
        change = paired_ratio([after for _, after in both], [before for before, _ in both])
        said = (
            f"Median TTFT with PRISM is {change.value:.2f} times stock's here (95 % interval {change.low:.2f} to "
            f"{change.high:.2f}, paired "
        )
        said += "block bootstrap over the requests of this one run). "
    return (
        said + f"{len(stock.replies)} requests a policy, one run, a 135M model on a processor: enough to see the "
        f"mechanism, not to predict your service. Percentiles with fewer than {BEYOND} samples beyond them are left "
        "out. The answers are those of stock vLLM for the same prompt; a reordered prompt is another prompt, and this "
        "small model's answers vary with it."
    )


def save_picture(stock: Run, prism: Run, path: Path, rate: float) -> None:
    """Both runs in one PNG: the spread of TTFT, and the mean of its parts."""
    # The second that it takes to import is not spent before the server is started.
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9.6, 4.0), dpi=150, layout="constrained")
    spread, split = figure.subplots(1, 2, width_ratios=[3, 2])
    for run, colour in ((stock, "#888888"), (prism, "#1b7f5c")):
        values = np.array([0.0, *sorted(run.ttft_s)])
        label = f"{run.name} ({run.hit_rate:.0%} of prompt tokens cached)"
        spread.step(values, np.linspace(0, 1, len(values)), where="post", color=colour, label=label)
    spread.set(xlabel="time to first token, s", ylabel="share of requests", ylim=(0, 1.02), xlim=(0, None))
    spread.legend(loc="lower right", fontsize=8, frameon=False)
    left: NDArray[np.float64] = np.zeros(2)
    for part in PARTS:
        means = np.array([prism.mean_part_s(part), stock.mean_part_s(part)])
        split.barh([prism.name, stock.name], means, left=left, color=PART_COLOURS[part], label=part.replace("_", " "))
        left = left + means
    split.set(xlabel="mean, s")
    split.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3)
    figure.suptitle(
        f"The same {len(stock.replies)} requests at {rate:.2f} a second, one run on a processor", fontsize=10
    )
    figure.savefig(path)
