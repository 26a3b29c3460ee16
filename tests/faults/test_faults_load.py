"""One server that is process 1 of its own world, with a collector that takes nothing: overload, hang-ups, a drain."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.conftest import CHAT, LONG, ROOM, Adopt, Client, least, until
from tests.realserver import Served, serving

from prism.bench.demo_server import write_settings
from prism.bench.http.pacing import open_loop
from prism.config.schema import Limits, PrismSpec

pytestmark = [pytest.mark.faults, pytest.mark.engine, pytest.mark.timeout(700)]

SLOTS = 8
TOKENS = 64  # of an answer: enough for the server, and not its clients, to be what is busy
GRACE_SECONDS = 120
DELAY_SECONDS = 20.0


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("settings") / "settings.yaml"
    write_settings(path, PrismSpec(), 1)
    return path


@pytest.fixture(scope="module")
def server(
    tiny_model_folder: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory, settings: Path, black_hole: str
) -> Iterator[Served]:
    prefix = ["unshare", "-p", "-f", "--kill-child", "--mount-proc"] if os.geteuid() == 0 else []
    flags = [*ROOM, "--max-num-seqs", str(SLOTS), "--prism-config", str(settings)]
    flags += ["--grace-period", str(GRACE_SECONDS), "--drain-delay", str(DELAY_SECONDS)]
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": black_hole, "OTEL_BSP_MAX_QUEUE_SIZE": "64"}
    folder = tmp_path_factory.mktemp("load")
    with serving(tiny_model_folder, repository, folder, *flags, environ=environ, prefix=prefix) as running:
        yield running


async def closed_loop(client: Client, clients: int, seconds: float) -> float:
    """Answers a second when that many clients ask one after the other."""
    limit, answered = time.monotonic() + seconds, 0

    async def one() -> None:
        nonlocal answered
        while time.monotonic() < limit:
            answer = await client.ask(TOKENS)
            answered += answer.status == 200  # not in one line: the sum would be read before the wait

    await asyncio.gather(*[one() for _ in range(clients)])
    return answered / seconds


async def test_a_multiple_of_the_load_is_answered_or_refused_and_nothing_collapses(
    client: Client, server: Served, settings: Path, adopt: Adopt
) -> None:
    await adopt(server, settings, PrismSpec(limits=Limits(max_waiting_requests=2 * SLOTS)))

    async def share_lost() -> float:
        most = await closed_loop(client, 2 * SLOTS, 6.0)
        began = time.monotonic()
        times = [number / (4 * most) for number in range(int(4 * most * 8.0))]
        answers = await open_loop(times, lambda _: client.ask(TOKENS))
        goodput = Counter(answer.status for answer in answers)[200] / (time.monotonic() - began)
        most = min(most, await closed_loop(client, 2 * SLOTS, 4.0))  # a shared machine may be slower by now
        refused = [answer for answer in answers if answer.status == 429]
        assert {answer.status for answer in answers} == {200, 429}
        assert all(int(answer.retry_after or 0) >= 1 and '"RateLimitError"' in answer.text for answer in refused)
        return 1 - goodput / most

    assert await least(share_lost, 0.4) <= 0.4


async def test_the_overload_is_seen_in_metrics_and_log(server: Served) -> None:
    assert server.metric("prism_refused_requests_total", reason="queue_full") > 0
    assert "overload_begins" in server.events()


async def test_prompt_tokens_that_wait_are_bounded_too(
    client: Client, server: Served, settings: Path, adopt: Adopt
) -> None:
    limits = Limits(max_waiting_requests=0, max_waiting_prompt_tokens=3000)
    await adopt(server, settings, PrismSpec(limits=limits))
    running = [await client.stream(LONG).begun() for _ in range(SLOTS)]
    words = [{"role": "user", "content": "word " * 900}]
    answers = await asyncio.gather(*[client.ask(4, messages=words, prism={"deadline_seconds": 5}) for _ in range(6)])
    for stream in running:
        await stream.hang_up()
    counts = Counter(answer.status for answer in answers)
    assert min(counts[429], counts[504]) >= 2, counts


async def test_a_hundred_that_hang_up_leave_no_work_within_a_second(
    client: Client, server: Served, settings: Path, adopt: Adopt
) -> None:
    await adopt(server, settings, PrismSpec())

    async def seconds() -> float:
        run = [await client.stream(LONG, f"gone-{number}").begun() for number in range(SLOTS)]
        wait = [client.stream(LONG, f"gone-{number}") for number in range(SLOTS, 100)]
        await until(lambda: server.sizes()["waiting"] == len(wait))
        began = time.monotonic()
        # Those that wait go first: else the slots of those that ran would be theirs for a moment.
        await asyncio.gather(*[stream.hang_up() for stream in wait])
        await until(lambda: server.sizes()["vllm_requests"] == len(run))
        await asyncio.gather(*[stream.hang_up() for stream in run])
        await until(lambda: server.sizes()["vllm_requests"] == 0)
        took = time.monotonic() - began
        await until(lambda: server.metric("vllm:num_requests_running") == 0)
        assert server.sizes()["waiting"] == 0
        return took

    assert await least(seconds, 1.0) <= 1.0


@pytest.mark.parametrize("number", [0, 99])
async def test_a_client_that_hung_up_has_a_trace_with_the_parts_it_reached(server: Served, number: int) -> None:
    shown = server.shown(f"gone-{number}")
    assert shown["outcome"] == "cancelled"
    assert shown["parts"][0]["name"] == "admission_wait"
    assert len(shown["parts"]) == (4 if number < SLOTS else 1)


async def test_unstreamed_requests_hang_up_alike(client: Client, server: Served) -> None:
    async def seconds() -> float:
        asked = [asyncio.create_task(client.ask(LONG)) for _ in range(3 * SLOTS)]
        await until(lambda: server.sizes()["vllm_requests"] == len(asked))
        for task in asked:
            task.cancel()
        return await until(lambda: server.sizes()["vllm_requests"] == 0)

    assert await least(seconds, 1.0) <= 1.0


async def test_an_upload_that_is_broken_off_leaves_a_cancelled_trace(server: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-request-id: torn\r\n"
    writer.write(f'{head}content-length: 5000\r\n\r\n{{"model":'.encode())
    await writer.drain()
    await until(lambda: server.sizes()["open"] == 1)
    writer.close()
    del reader
    assert (await asyncio.to_thread(server.shown, "torn"))["outcome"] == "cancelled"


async def test_everything_that_arrived_has_ended_somehow(server: Served) -> None:
    await until(lambda: server.sizes()["open"] == server.sizes()["closing"] == 0)
    arrived = server.metric("prism_arrived_requests_total")
    ended = server.metric("prism_requests_total")
    assert arrived == ended > 0


async def test_a_collector_that_takes_nothing_costs_spans_and_says_so(server: Served) -> None:
    lost = server.metric("prism_spans_total", result="dropped") + server.metric("prism_spans_total", result="failed")
    assert lost > 0
    assert "spans_lost" in server.events()


@pytest.fixture(scope="module")
async def drained(server: Served, settings: Path, adopt: Adopt) -> dict[str, Any]:
    """SIGTERM under load: what those under way, those who came in the delay, and those after it got."""
    client = Client(server)
    streams = [await client.stream(1000).begun() for _ in range(SLOTS)]
    streams += [client.stream(1000) for _ in range(SLOTS)]
    server.signal(signal.SIGTERM)
    began = time.monotonic()
    await until(lambda: server.ready() != 200, DELAY_SECONDS)
    ready, live = server.ready(), server.probe("live")
    meanwhile = await client.ask(4)
    await asyncio.sleep(max(0.0, began + DELAY_SECONDS + 0.5 - time.monotonic()))
    after = await client.ask(4)
    answers = [await stream.end() for stream in streams]
    status = await asyncio.to_thread(server.process.wait, GRACE_SECONDS + 10)
    return {
        "ready": ready,
        "live": live,
        "meanwhile": meanwhile,
        "after": after,
        "answers": answers,
        "status": status,
        "seconds": time.monotonic() - began,
    }


def test_readiness_goes_first_and_liveness_stays(drained: dict[str, Any]) -> None:
    assert (drained["ready"], drained["live"]) == (503, 200)


def test_requests_are_still_taken_in_the_delay_and_their_connections_closed(drained: dict[str, Any]) -> None:
    assert (drained["meanwhile"].status, drained["meanwhile"].connection) == (200, "close")


def test_later_ones_are_told_to_go_elsewhere(drained: dict[str, Any]) -> None:
    assert drained["after"].status in (0, 503)


def test_streams_are_finished(drained: dict[str, Any]) -> None:
    assert all(answer.done for answer in drained["answers"])


def test_the_process_ends_with_zero_in_time_though_the_collector_does_not_answer(drained: dict[str, Any]) -> None:
    assert drained["status"] == 0
    assert drained["seconds"] < GRACE_SECONDS


def test_the_drain_is_in_the_log(drained: dict[str, Any], server: Served) -> None:
    assert [event for event in server.events() if "drain" in event] == ["drain_begins", "drain_ends"]
    assert "cut=0" in server.log.read_text()


def test_nothing_in_the_log_is_a_stack_trace(drained: dict[str, Any], server: Served) -> None:
    assert "Traceback" not in server.log.read_text()
