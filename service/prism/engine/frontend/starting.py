"""Starts the engine beside the event loop, in processes that outlive a signal to their whole group."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable
from multiprocessing import resource_tracker
from typing import TypeVar

_T = TypeVar("_T")


async def in_thread(work: Callable[[], _T]) -> _T:
    """Run slow start-up work beside the event loop, so that probes and signals are answered meanwhile.

    The thread is a daemon: when the process is told to stop, it does not wait for a model to load.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def run() -> None:
        block_group_signals()
        try:
            settle = _unless_cancelled(done, done.set_result, work())
        except BaseException as error:  # noqa: BLE001 - handed to the event loop, whatever it is
            settle = _unless_cancelled(done, done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle)

    threading.Thread(target=run, name="prism-engine-start", daemon=True).start()
    return await done


def block_group_signals() -> None:
    """In this thread, and so in the processes that it starts, block what asks a whole process group to end.

    Ctrl-C and `timeout` signal the group. The engine has to go on until the serving process, which does hear them, has
    finished its streams.
    """
    # Starting the tracker unblocks both signals in the thread that does it, and the first process started does it.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})


def _unless_cancelled(done: asyncio.Future[_T], settle: Callable[..., None], value: object) -> Callable[[], None]:
    def call() -> None:
        if not done.cancelled():
            settle(value)

    return call
