"""Signals and children: who hears that the process should end, and what process 1 of a container owes its orphans."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_REAP_SECONDS = 5.0


class LeavesSignals:
    """For a uvicorn server: the process's signal handlers are not its own to set.

    It would replace them, end at once when one comes, and raise the signal again when it is done.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def on_stop_signals(handler: Callable[[], None]) -> None:
    """Call this in the running event loop whenever the process is asked to end."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, handler)


async def reap_orphans() -> None:
    """As process 1: take leave of processes that were handed to it when their own parent died. Never returns."""
    seen: set[int] = set()
    while True:
        reap_once(seen)
        await asyncio.sleep(_REAP_SECONDS)


def reap_once(seen: set[int]) -> None:
    """Reap what was a zombie at the last look already; whoever started a process itself has had its turn by then.

    Args:
        seen: zombies of earlier looks; kept up to date.
    """
    multiprocessing.active_children()  # reaps those that this process started through it
    with contextlib.suppress(ChildProcessError):
        while zombie := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if zombie.si_pid not in seen:
                seen.add(zombie.si_pid)
                return
            seen.discard(zombie.si_pid)
            os.waitpid(zombie.si_pid, os.WNOHANG)
