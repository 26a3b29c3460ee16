"""`make results`: every study's cells run, and `docs/results` written from them.

    python -m prism.bench.results run [STUDY …] --seeds 3     run what is missing, then write
    python -m prism.bench.results write                       write from what was run
    python -m prism.bench.results check                       run a sample of the cells again and compare

Cells are files, `docs/results/cells/<hash of the definition>.json`, so a run that is broken off goes on where it was.
"""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from prism.bench.cells import Cell, CellStore, Outcome, outcome
from prism.bench.grid import missing, run_cells
from prism.bench.pages import write_pages
from prism.bench.sim import progress_bars
from prism.bench.studies import KNEE_PER_S, MODELS, STUDIES, Panel
from prism.engine.enginecore.harness import quiet_vllm
from prism.errors import PrismError

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, no_args_is_help=True)

_FOLDER = Path("docs/results")
_STUDIES = Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(STUDIES)}; all of them without.")]
_SEEDS = Annotated[int | None, typer.Option(help="Seeds 1 to this; without, as many as a study takes.", min=1)]
_OUT = Annotated[Path, typer.Option(help="Folder of pages and cells.")]
_PROCESSES = Annotated[int, typer.Option(help="Cells at once.", min=1)]


@app.callback()
def be_quiet() -> None:
    """The tables and figures of docs/results."""
    quiet_vllm()


@app.command()
def run(
    studies: _STUDIES = None,
    seeds: _SEEDS = None,
    processes: _PROCESSES = 2,
    out: _OUT = _FOLDER,
    model: Annotated[str, typer.Option(help=f"Only cells of this one of {', '.join(MODELS)}.")] = "",
    arm: Annotated[list[str] | None, typer.Option(help="Only cells of these arms; repeatable.")] = None,
    scenario: Annotated[list[str] | None, typer.Option(help="Only cells of these scenarios; repeatable.")] = None,
    load: Annotated[list[float] | None, typer.Option(help="Only cells at these loads; repeatable.")] = None,
    most: Annotated[int, typer.Option(help="Stop after so many cells; 0 for all.", min=0)] = 0,
) -> None:
    """Run the cells that are missing, then write the pages."""
    chosen = _chosen(studies)
    cells = [cell for name in chosen for cell in STUDIES[name].cells(STUDIES[name].seeds(seeds))]
    wanted = [
        cell
        for cell in cells
        if model in ("", cell.model)
        and (not arm or cell.arm in arm)
        and (not scenario or cell.scenario in scenario)
        and (not load or cell.load_per_s in load)
    ]
    _run(wanted, CellStore(out / "cells"), processes, most)
    write_pages(out, seeds)


@app.command()
def write(seeds: _SEEDS = None, out: _OUT = _FOLDER) -> None:
    """Write the pages from the cells that are there."""
    write_pages(out, seeds)


@app.command()
def headline(processes: _PROCESSES = 2, out: _OUT = _FOLDER, seed: int = 1) -> None:
    """The main figures, made anew: α = 1, both models, at the strongest's knee and at 0.8 of it."""
    strongest = {model: _strongest(CellStore(out / "cells"), model) for model in MODELS}
    panels = [
        Panel("rag", model, tuple(round(KNEE_PER_S["rag", model] * share, 2) for share in (0.8, 1.0)), arms)
        for model, arms in strongest.items()
    ]
    cells = [cell for panel in panels for cell in panel.cells((seed,))]
    with TemporaryDirectory(prefix="prism-headline-") as folder:
        fresh = CellStore(Path(folder))
        _run(cells, fresh, processes, 0)
        _compare(cells, fresh, CellStore(out / "cells"))


@app.command()
def check(
    count: Annotated[int, typer.Option(help="How many cells.", min=1)] = 6,
    seed: Annotated[int, typer.Option(help="Of the sample.")] = 0,
    out: _OUT = _FOLDER,
) -> None:
    """Run a sample of the stored cells again: outcomes must be the same."""
    paths = sorted((out / "cells").glob("*.json"))
    if not paths:
        raise typer.BadParameter(f"no cells in {out / 'cells'}: run some first")
    stored = [msgspec.json.decode(path.read_bytes(), type=Outcome) for path in paths]
    sample = random.Random(seed).sample(stored, min(count, len(stored)))
    wrong = [one.key for one in sample if not same(one, outcome(_cell_of(one)))]
    if wrong:
        raise typer.BadParameter(f"cells that do not repeat: {', '.join(wrong)}")
    Console().print(f"{len(sample)} of {len(stored)} cells run again: the same")


def same(one: Outcome, other: Outcome) -> bool:
    """Equal but for the processor time they took."""
    return (
        one.key == other.key and one.ttft_ms == other.ttft_ms and one.summary.hit_percent == other.summary.hit_percent
    )


def _cell_of(stored: Outcome) -> Cell:
    fields = {
        name: stored.definition[name] for name in ("model", "load_per_s", "seed", "seconds", "warm_up_s", "kv_share")
    }
    return Cell(stored.definition["scenario"]["name"], arm=stored.definition["arm"]["name"], **fields)


def _strongest(store: CellStore, model: str) -> tuple[str, ...]:
    """Stock, SGLang's order, the strongest baseline of the stored grid at the knee, and PRISM."""
    panel = next(one for one in STUDIES["load"].panels if (one.scenario, one.model) == ("rag", model))
    knee = KNEE_PER_S["rag", model]
    known = [(arm, store.get(panel.cell(arm, knee, 1))) for arm in panel.baselines]
    ranked = sorted((found.summary.ttft_p99_s or float("inf"), arm) for arm, found in known if found is not None)
    best = ranked[0][1] if ranked else "contextpilot"
    return tuple(dict.fromkeys(("stock", "sglang", best, "prism")))


def _compare(cells: list[Cell], fresh: CellStore, stored: CellStore) -> None:
    console = Console()
    differ = []
    for cell in cells:
        now, before = fresh.get(cell), stored.get(cell)
        assert now is not None
        repeats = "not stored" if before is None else "repeats" if same(now, before) else "DIFFERS"
        differ += [cell.key] if repeats == "DIFFERS" else []
        p99 = now.summary.ttft_p99_s
        shown = "–" if p99 is None else f"{p99:.3f} s"
        hit = f"hit {now.summary.hit_percent:4.1f} %"
        console.print(f"{cell.model:11} {cell.load_per_s:5g}/s {cell.arm:24} {hit}  P99 {shown}  {repeats}")
    if differ:
        raise typer.BadParameter(f"cells that do not repeat: {', '.join(differ)}")


def _chosen(studies: list[str] | None) -> list[str]:
    unknown = [name for name in studies or () if name not in STUDIES]
    if unknown:
        raise typer.BadParameter(f"no study {unknown[0]!r}: choose from {', '.join(STUDIES)}")
    return studies or list(STUDIES)


def _run(cells: list[Cell], store: CellStore, processes: int, most: int) -> None:
    todo = missing(cells, store)
    todo = todo[:most] if most else todo
    try:
        with progress_bars() as progress:
            task = progress.add_task(f"{len(todo)} cells", total=len(todo))
            run_cells(todo, store, processes, lambda cell, found: progress.advance(task))
    except PrismError as error:
        raise typer.BadParameter(str(error)) from error


if __name__ == "__main__":
    app()
