"""The open loop: what is due begins when it is due, whatever became of what began before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def open_loop(times: Sequence[float], begin: Callable[[int], Coroutine[Any, Any, T]]) -> list[T]:
    """Begins something at each of these times and waits for the last to end.

    Args:
        times: seconds from now, ascending. One that is late begins at once.
        begin: makes what belongs to a place in `times`.

    Returns:
        What each one returned, in the order of `times`.

    Raises:
        ExceptionGroup: one has failed; the others are cancelled.
    """
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for place, due in enumerate(times):
            await asyncio.sleep(max(0.0, began + due - time.monotonic()))
            tasks.append(group.create_task(begin(place)))
    return [task.result() for task in tasks]
