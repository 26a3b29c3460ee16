"""Collectors for measurements: one that takes every span at once, and one that takes connections and says nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

_ACCEPTED = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"


@contextlib.contextmanager
def black_hole() -> Iterator[str]:
    """Address of a collector that never answers: whoever sends to it waits until its own time is up."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextlib.asynccontextmanager
async def willing() -> AsyncIterator[str]:
    """Address of a collector (OTLP over HTTP) that takes everything and keeps nothing."""
    connections: dict[asyncio.Task[None] | None, asyncio.StreamWriter] = {}

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[asyncio.current_task()] = writer
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await _take(reader, writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for writer in connections.values():
            writer.close()
        await asyncio.gather(*[task for task in connections if task is not None])


async def _take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = next(line.split(":")[1] for line in head.splitlines() if line.startswith("content-length:"))
        await reader.readexactly(int(length))
        writer.write(_ACCEPTED)
        await writer.drain()
