"""Many cells: run what is missing, two at a time, and keep what was run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context

from prism.bench.cells import Cell, CellStore, Outcome, outcome
from prism.engine.enginecore.harness import quiet_vllm

Done = Callable[[Cell, Outcome], None]


def missing(cells: Iterable[Cell], store: CellStore) -> list[Cell]:
    """Those without an outcome, each once, in the order given."""
    return [cell for cell in dict.fromkeys(cells) if store.get(cell) is None]


def run_cells(cells: Sequence[Cell], store: CellStore, processes: int, done: Done) -> None:
    """Runs cells and stores each outcome as soon as it is there, so that a run that is broken off loses only what it
    was at.

    Args:
        processes: how many at once; 1 stays in this process.
        done: told of each.

    Raises:
        DataMissing: a workload needs data that are not here.
    """
    if processes == 1:
        for cell in cells:
            _keep(cell, outcome(cell), store, done)
        return
    context = get_context("forkserver")
    # vLLM is imported once, and not by each worker.
    context.set_forkserver_preload(["prism.bench.cells"])
    with ProcessPoolExecutor(processes, mp_context=context, initializer=quiet_vllm) as pool:
        running: dict[Future[Outcome], Cell] = {pool.submit(outcome, cell): cell for cell in cells}
        try:
            while running:
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    _keep(running.pop(future), future.result(), store, done)
        finally:
            pool.shutdown(cancel_futures=True)


def _keep(cell: Cell, found: Outcome, store: CellStore, done: Done) -> None:
    store.put(found)
    done(cell, found)
