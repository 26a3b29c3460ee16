"""The pages of `docs/results`: one for each study, and one that sets the figures beside the goals and the paper's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from prism.bench.cells import CellStore
from prism.bench.estimates import LEVELS, seconds_text
from prism.bench.findings import INFINITE, Findings, Point, p99_against, p99_interval
from prism.bench.goals import goals
from prism.bench.pictures import draw_panel
from prism.bench.studies import P99_BOUND_S, STUDIES, Study

_OURS = "prism"


def write_pages(folder: Path, runs: int | None = None) -> None:
    """Writes Markdown and pictures from the stored cells; a study without any has no page, nor keeps an old one.

    Args:
        runs: of each cell, where they are not those of its study.
    """
    store = CellStore(folder / "cells")
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    written = []
    for study in STUDIES.values():
        found = [Findings.of(panel, study.seeds(runs), store) for panel in study.panels]
        page = folder / f"{study.name}.md"
        if any(one.compares for one in found):
            page.write_text(_page(study, found, folder), encoding="utf-8")
            written.append((study, found))
        else:
            page.unlink(missing_ok=True)
    (folder / "index.md").write_text(_index(written), encoding="utf-8")


_REACHED = {True: "yes", False: "**no**", None: "–"}


def _index(written: Sequence[tuple[Study, Sequence[Findings]]]) -> str:
    lines_of_goals = list(goals({study.name: found for study, found in written}))
    reached = [one.reached for one in lines_of_goals if one.reached is not None]
    lines = [
        "# Results",
        "",
        "vLLM's own scheduler and PRISM's classes on a virtual clock, with the costs of an A800 80 GB (see",
        "`prism.bench.cost_model`); every figure here is made by `make results`, and every cell is named by a hash of",
        "its definition and repeats exactly. The strongest baseline is the best in that very cell of those that were",
        "run: the table says how many of them were, and on how many seeds. Where not all were run, or on few seeds, a",
        "figure is a direction and no proof. TTFT counts from arrival.",
        "",
        "## Against the goals",
        "",
        f"{sum(reached)} of {len(reached)} are reached; why the others are not is said in",
        "[figures](../figures.md#goals-that-are-not-reached).",
        "",
        "| where | goal | here | reached | seeds | baselines run | the paper |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {one.where} | {one.goal} | {one.here} | {_REACHED[one.reached]} "
            f"| {one.seeds} | {one.baselines} | {one.paper} |"
            for one in lines_of_goals
        ),
        "",
        "The paper's figures are of its own testbed and its own traffic, of which answer lengths and document lengths",
        "are not published; loads are therefore compared as shares of a knee, never as numbers of requests.",
        "",
        "## Studies",
        "",
        *(f"- [{study.title}]({study.name}.md)" for study, _ in written),
        "- Not simulated: [a real engine on a processor](../figures.md#on-a-real-engine)",
        "",
    ]
    return "\n".join(lines)


def _page(study: Study, found: Sequence[Findings], folder: Path) -> str:
    lines = [f"# {study.title}", "", study.about, ""]
    for one in found:
        if one.compares:
            lines += _panel(study, one, folder)
    return "\n".join(lines)


def _panel(study: Study, found: Findings, folder: Path) -> Iterator[str]:
    panel = found.panel
    yield from (f"## {panel.title}", "", f"Baselines run: {found.baselines_run}.", "")
    if len(found.loads) > 1:
        name = f"{study.name}-{panel.scenario}-{panel.model}.svg"
        draw_panel(found, folder / "pictures" / name)
        yield from (f"![P99 TTFT and hit rate against load](pictures/{name})", "")
    columns = ("load/s", "arm", "seeds", "requests", "hit %", *LEVELS, "P99 / strongest", "P99 of the rare")
    yield from (f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}")
    for load in found.loads:
        strongest = found.strongest(load)
        for arm in panel.arms:
            point = found.get(arm, load)
            if point is not None:
                yield _row(point, strongest)
    yield ""
    yield from _knees(found)


def _row(point: Point, strongest: Point | None) -> str:
    ttft = point.ttft_s()
    shown = " | ".join(seconds_text(ttft.get(level)) for level in LEVELS)
    name = f"**{point.arm}**" if point.arm == _OURS else point.arm
    requests = f"{point.requests}" + (f" ({point.unfinished} unfinished)" if point.unfinished else "")
    cells = (f"{point.load_per_s:g}", name, str(len(point.outcomes)), requests, f"{point.hit_percent:.1f}", shown)
    return f"| {' | '.join(cells)} | {_against(point, strongest)} | {seconds_text(point.rare_p99_s())} |"


def _against(point: Point, strongest: Point | None) -> str:
    if strongest is None:
        return "–"
    if strongest.arm == point.arm:
        return "strongest"
    interval = p99_interval(point, strongest)
    return str(interval) if interval is not None else _ratio(p99_against(point, strongest))


def _knees(found: Findings) -> Iterator[str]:
    bound = P99_BOUND_S[found.panel.model]
    known = [(arm, found.sustained_per_s(arm)) for arm in found.panel.arms]
    if not any(load for _, load in known):
        return
    yield from (f"Load sustained at P99 ≤ {bound:g} s, between the loads of the grid:", "")
    yield from ("| arm | requests/s |", "|---|---|")
    yield from (f"| {arm} | {load:.2f} |" for arm, load in known if load is not None)
    yield ""


def _ratio(value: float | None) -> str:
    if value is None:
        return "–"
    return "∞" if value == INFINITE else f"{value:.2f}"
