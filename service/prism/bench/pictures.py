"""Pictures of the results. Equal figures give equal files: no dates, no random names."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from prism.bench.findings import INFINITE, Findings
from prism.bench.studies import P99_BOUND_S

_OURS = "prism"


def draw_panel(found: Findings, path: Path) -> None:
    """P99 TTFT and hit rate of each arm against load, as SVG."""
    with mpl.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        for arm in found.panel.arms:
            _draw_arm(found, arm, left, right)
        left.axhline(P99_BOUND_S[found.panel.model], color="0.6", linewidth=0.8, linestyle=":")
        left.set(xlabel="requests/s", ylabel="P99 TTFT, s", yscale="log")
        right.set(xlabel="requests/s", ylabel="prompt tokens from cache, %")
        right.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(visible=True, color="0.92")
        figure.suptitle(found.panel.title, fontsize=10)
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw_arm(found: Findings, arm: str, left: Axes, right: Axes) -> None:
    points = [point for load in found.loads if (point := found.get(arm, load)) is not None]
    style = {"linewidth": 2.4, "color": "black"} if arm == _OURS else {"linewidth": 1.1}
    finite = [point for point in points if point.p99_s < INFINITE]
    left.plot([p.load_per_s for p in finite], [p.p99_s for p in finite], marker=".", label=arm, **style)
    right.plot([p.load_per_s for p in points], [p.hit_percent for p in points], marker=".", label=arm, **style)
