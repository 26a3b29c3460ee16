"""The receiving end of the facts channel, over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from prism.config.schema import PrismSpec
from prism.engine.frontend.desk import RequestDesk
from prism.engine.frontend.facts import WARM_UP, FactCounts, FactDispatch, FactReceiver, facts_address
from prism.engine.frontend.health import EngineHealth
from prism.engine.frontend.settings import EngineSettings
from prism.engine.wire import (
    Admitted,
    Fact,
    FactBatch,
    Gauges,
    Heartbeat,
    SettingsAdopted,
    SettingsRefused,
    encode_batch,
)
from prism.errors import DeploymentError
from prism.telemetry import metrics as names
from prism.telemetry.metrics import Metrics

SPEC = PrismSpec().model_dump(mode="json", by_alias=True, exclude_none=True)


def batch(sequence: int, *facts: Fact, dropped: int = 0, engine: int = 0) -> FactBatch:
    return FactBatch(engine, sequence, dropped, list(facts))


def adopted(generation: int, digest: str) -> SettingsAdopted:
    return SettingsAdopted(1.0, generation, digest, "test", "u", "stable", SPEC)


@pytest.fixture
def settings() -> EngineSettings:
    return EngineSettings()


@pytest.fixture
def health() -> EngineHealth:
    return EngineHealth()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("m")


@pytest.fixture
def dispatch(settings: EngineSettings, health: EngineHealth, metrics: Metrics) -> FactDispatch:
    return FactDispatch(RequestDesk(), settings, health, metrics)


@pytest.fixture
def push() -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.set(zmq.LINGER, 0)
        yield socket


async def test_what_is_sent_arrives(
    dispatch: FactDispatch, health: EngineHealth, push: zmq.Socket[bytes], tmp_path: Path
) -> None:
    receiver = FactReceiver(f"ipc://{tmp_path}/f", dispatch)
    receiver.start()
    push.connect(receiver.address)
    health.watch(lambda: False, [0])
    first, last = (encode_batch(batch(number, Heartbeat(1.0, number + 0.5))) for number in (0, 1))
    for message in (first, b"nonsense", last):
        push.send(message)
    async with asyncio.timeout(5):
        while health.longest_step_s < 1.5:  # noqa: ASYNC110 - a field, not an event
            await asyncio.sleep(0.01)
    await receiver.close()
    assert dispatch.counts.unreadable_batches == 1


def test_a_gap_is_a_lost_batch() -> None:
    counts = FactCounts()
    whole = [counts.note(batch(number)) for number in (0, 1, 4, 5)]
    assert (whole, counts.lost_batches) == ([True, True, False, True], 2)


def test_facts_that_the_sender_dropped_are_known() -> None:
    counts = FactCounts()
    assert [counts.note(batch(0)), counts.note(batch(1, dropped=3)), counts.note(batch(2, dropped=3))] == [
        True,
        False,
        True,
    ]


def test_a_sender_that_starts_again_lost_nothing() -> None:
    counts = FactCounts()
    for number in (0, 1, 2, 0, 1):
        counts.note(batch(number))
    assert counts.lost_batches == 0


def test_engines_are_counted_apart() -> None:
    counts = FactCounts()
    assert all(counts.note(batch(0, engine=engine)) for engine in (0, 1))


def test_only_announced_settings_are_in_force(dispatch: FactDispatch, settings: EngineSettings) -> None:
    assert settings.in_force.source == "defaults"
    dispatch.take(batch(0, adopted(3, "d3")))
    assert (settings.in_force.generation, settings.rendering()[1]) == (3, 3)


def test_with_several_engines_all_must_have_adopted(dispatch: FactDispatch, settings: EngineSettings) -> None:
    dispatch.take(batch(0, adopted(1, "d1"), engine=0))
    dispatch.take(batch(0, adopted(1, "d1"), engine=1))
    dispatch.take(batch(1, adopted(2, "d2"), engine=0))
    assert settings.in_force.generation == 1
    dispatch.take(batch(1, adopted(2, "d2"), engine=1))
    assert settings.in_force.generation == 2


def test_a_refusal_is_shown_until_something_good_comes(dispatch: FactDispatch, settings: EngineSettings) -> None:
    dispatch.take(batch(0, SettingsRefused(1.0, "invalid", "weights", "bad")))
    assert settings.as_json()["last_refusal"] == {"reason": "invalid", "message": "weights", "digest": "bad"}
    dispatch.take(batch(1, adopted(1, "d1")))
    assert settings.as_json()["last_refusal"] is None


def admitted(request: str) -> Admitted:
    return Admitted(request, 1.0, "hot", "", "none", 0, 30, 40, 1, 1, {"document": 30}, {"document": 40}, [], 1, 0)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model_name": "m", **labels})


def test_facts_fill_the_metrics(dispatch: FactDispatch, metrics: Metrics) -> None:
    gauges = Gauges(1.0, {"hot": 2, "cold": 0}, 4.0, 1, {"private": 3}, [0.001], 5, 6, 7)
    dispatch.take(batch(0, gauges, admitted("chatcmpl-1"), SettingsRefused(1.0, "not_yaml", "line 1", "d")))
    counted = [
        value(metrics, names.WAITING_REQUESTS, lane="hot"),
        value(metrics, names.EVICTIONS, **{"class": "private"}),
        value(metrics, names.PROMPT_TOKENS, kind="document", cached="true"),
        value(metrics, names.SETTINGS_REFUSALS, reason="not_yaml"),
    ]
    assert counted == [2, 3, 30, 1]


def test_the_request_that_warms_the_engine_up_counts_for_nothing(dispatch: FactDispatch, metrics: Metrics) -> None:
    dispatch.take(batch(0, admitted(f"{WARM_UP}-1a2b3c4d")))
    assert value(metrics, names.PROMPT_TOKENS, kind="document", cached="false") == 0


def test_what_the_channel_lost_is_told_by_where(dispatch: FactDispatch) -> None:
    dispatch.take(batch(0))
    dispatch.take(batch(3, dropped=4))
    assert dispatch.lost() == {"channel_full": 4, "gap": 2, "unreadable": 0, "unclaimed": 0}
    assert set(dispatch.lost()) == set(names.LOSSES)


def test_the_address_depends_on_the_port_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert facts_address(8080) == facts_address(8080) != facts_address(8081)


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = Path(facts_address(1).removeprefix("ipc://")).parent
    folder.chmod(0o755)
    with pytest.raises(DeploymentError, match="only this user"):
        facts_address(1)
