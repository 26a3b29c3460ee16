"""Signals that a whole process group gets, and a second one: the engine outlives the first, nothing the second."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from tests.faults.conftest import LONG, PATIENCE, ROOM, Client
from tests.realserver import Served, serving
from tests.telemetry.conftest import Collector, receiving

pytestmark = [pytest.mark.faults, pytest.mark.engine, pytest.mark.timeout(700)]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with receiving() as one:
        yield one


@pytest.fixture(scope="module")
def server(
    tiny_model_folder: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory, collector: Collector
) -> Iterator[Served]:
    flags = [*ROOM, "--grace-period", "600", "--drain-delay", "1"]
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
    with serving(tiny_model_folder, repository, tmp_path_factory.mktemp("signals"), *flags, environ=environ) as running:
        yield running


async def test_the_groups_signal_leaves_the_engine_to_finish_and_a_second_one_cuts_it_off(
    client: Client, server: Served
) -> None:
    family = server.server.children(recursive=True)
    engine = (server.engine_core, server.worker)
    short, long = await client.stream(150, "short").begun(), await client.stream(LONG, "cut").begun()
    os.killpg(server.process.pid, signal.SIGINT)
    finished = await asyncio.wait_for(short.end(), PATIENCE)
    assert finished.done
    assert all(process.status() != psutil.STATUS_ZOMBIE for process in engine)
    began = time.monotonic()
    os.killpg(server.process.pid, signal.SIGTERM)
    cut = await asyncio.wait_for(long.end(), PATIENCE)
    status = await asyncio.to_thread(server.process.wait, PATIENCE)
    assert '"ServiceUnavailableError"' in cut.text
    assert (status, time.monotonic() - began < 30) == (4, True)
    _, left = psutil.wait_procs(family, timeout=PATIENCE)
    assert left == []
    assert server.events()[-3:] == ["drain_begins", "drain_hurried", "drain_ends"]


@pytest.mark.parametrize("name", ["short", "cut"])
def test_the_last_requests_traces_have_arrived_whole(collector: Collector, name: str) -> None:
    parts = {"prism.admission_wait", "prism.prefill", "prism.first_token", "prism.decode"}
    assert parts <= collector.trace_of("prism.request_id", name)
