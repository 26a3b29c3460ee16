"""The arms of a benchmark: servers, and how each is asked what it serves and made to forget."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import httpx

from prism.bench.http.load import Session
from prism.errors import DeploymentError

IDLE_SECONDS = 30.0
"""How long a reset is tried again while the server says that blocks are still in use."""

_BUSY = (400, 409, 423, 503)


@dataclass(frozen=True, slots=True)
class Server:
    """An arm.

    Attributes:
        name: what it is called in the report.
        url: its address; routes of OpenAI's API stand below `/v1`.
        admin_url: address of PRISM's admin port, if it is to be used for resets.
        front: what a cell's requests pass on their way to it; it begins anew with each cell.
    """

    name: str
    url: str
    admin_url: str | None = None
    front: Callable[[Sequence[Session]], list[Session]] = list

    def resets(self) -> Iterator[str]:
        """Addresses that may empty the prefix cache: PRISM's, vLLM's in its development mode, SGLang's."""
        if self.admin_url:
            yield f"{self.admin_url}/prism/v1/reset_prefix_cache"
        yield f"{self.url}/reset_prefix_cache"
        yield f"{self.url}/flush_cache"


def parse_server(text: str) -> Server:
    """`NAME=URL` or `NAME=URL,ADMIN_URL`.

    Raises:
        DeploymentError: neither.
    """
    name, given, addresses = text.partition("=")
    url, _, admin = addresses.partition(",")
    urls = [url, *filter(None, [admin])]
    if not given or not name or not all(one.startswith(("http://", "https://")) for one in urls):
        raise DeploymentError(f"--arm {text}: write NAME=URL or NAME=URL,ADMIN_URL, for example prism=http://host:8080")
    return Server(name, url.rstrip("/").removesuffix("/v1"), admin.rstrip("/") or None)


async def served_model(client: httpx.AsyncClient, server: Server) -> str:
    """The first model that the server lists.

    Raises:
        DeploymentError: it does not answer, or lists none.
    """
    try:
        answer = await client.get(f"{server.url}/v1/models", timeout=30)
        answer.raise_for_status()
        models = answer.json()["data"]
        return str(models[0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise DeploymentError(
            f"arm {server.name}: {server.url}/v1/models does not list a model ({type(error).__name__}: {error}): "
            "is the server up, and is this its address?"
        ) from None


async def reset_of(client: httpx.AsyncClient, server: Server) -> str | None:
    """The address that empties this server's cache, found by using it; None if it has none."""
    for address in server.resets():
        if await emptied(client, address):
            return address
    return None


async def emptied(client: httpx.AsyncClient, address: str) -> bool:
    """Whether the cache was emptied; tried again for a while if the server says that it is in use."""
    limit = time.monotonic() + IDLE_SECONDS
    while True:
        try:
            answer = await client.post(address, timeout=30)
        except httpx.HTTPError:
            return False
        if answer.is_success:
            return True
        if answer.status_code not in _BUSY or time.monotonic() > limit:
            return False
        await asyncio.sleep(0.5)
