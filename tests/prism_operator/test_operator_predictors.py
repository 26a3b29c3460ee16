"""Asking pods over a real socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from prism.config.document import Settings, to_document
from prism.config.schema import PrismSpec
from prism_operator import predictors as predictors_module
from prism_operator.predictors import Heard, Predictors, Wanted
from realcluster.admin_standin import AdminPort

POD, CONFIG = ("team-a", "p"), ("team-a", "rag")
SETTINGS = Settings(PrismSpec.model_validate({"scheduler": {"coldLane": {"quota": 0}}}), 3, "team-a/rag", "uid")


@pytest.fixture
def port(tmp_path: Path) -> Iterator[AdminPort]:
    opened = AdminPort("127.0.0.1", 0, tmp_path / "s.yaml", "p")
    yield opened
    opened.close()


@pytest.fixture
def told() -> list[tuple[str, str]]:
    """The configs that something new was heard for."""
    return []


@pytest.fixture
def predictors(port: AdminPort, told: list[tuple[str, str]]) -> Iterator[Predictors]:
    asking = Predictors(port.port, 0.3, told.append)
    asking.start()
    yield asking
    asking.stop()
    asking.join(timeout=10)


def until(what: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def watch(predictors: Predictors, address: str = "127.0.0.1", life: str = "1") -> None:
    predictors.watch(CONFIG, {POD: Wanted(address, life, SETTINGS.digest)}, brisk=False)


def test_a_change_in_the_file_is_heard(port: AdminPort, predictors: Predictors, told: list[tuple[str, str]]) -> None:
    watch(predictors)
    until(lambda: predictors.heard(POD).asked)
    port.file.write_text(to_document(SETTINGS))
    until(lambda: predictors.heard(POD).digest == SETTINGS.digest)
    until(lambda: told.count(CONFIG) >= 2)


def test_a_refusal_is_heard_in_its_own_words(port: AdminPort, predictors: Predictors) -> None:
    port.file.write_text("stable: {source: x, generation: 1, spec: {oops: 1}}")
    watch(predictors)
    until(lambda: "stable.spec.oops" in predictors.heard(POD).refusal)


def test_figures_come_with_the_time_they_were_taken(port: AdminPort, predictors: Predictors) -> None:
    port.serve(10, 0.2, failed=1, cached=0.4)
    began = time.time()
    watch(predictors)
    until(lambda: predictors.heard(POD).figures is not None)
    heard = predictors.heard(POD)
    assert heard.figures is not None
    assert (heard.figures.requests, heard.figures.failed, heard.figures.hit_rate) == (10, 1, 0.4)
    assert heard.taken >= began


def test_a_pod_that_does_not_answer_says_where_and_is_asked_again(port: AdminPort, predictors: Predictors) -> None:
    port.close()
    watch(predictors)
    until(lambda: predictors.heard(POD).trouble)
    assert f"127.0.0.1:{port.port}" in predictors.heard(POD).trouble


def test_one_answer_that_does_not_come_changes_nothing_and_two_do(
    port: AdminPort, predictors: Predictors, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Heard] = []
    answer = predictors_module._answer

    async def answering(client: httpx.AsyncClient, base: str) -> Heard:
        silent = len(asked) in (2, 4, 5)
        asked.append(Heard(True, trouble="no answer") if silent else await answer(client, base))
        seen.append(predictors.heard(POD))
        return asked[-1]

    seen: list[Heard] = []
    monkeypatch.setattr(predictors_module, "_answer", answering)
    watch(predictors)
    until(lambda: len(asked) >= 8)
    # What is known when the next ask begins.
    assert [one.trouble for one in seen[1:8]] == ["", "", "", "", "", "no answer", ""]


def test_a_pod_that_came_back_under_its_name_is_asked_anew(port: AdminPort, predictors: Predictors) -> None:
    watch(predictors)
    until(lambda: predictors.heard(POD).asked)
    port.close()
    watch(predictors, life="2")
    until(lambda: predictors.heard(POD).trouble)


def test_a_pod_that_is_not_watched_any_more_is_forgotten(port: AdminPort, predictors: Predictors) -> None:
    watch(predictors)
    until(lambda: predictors.heard(POD).asked)
    predictors.forget(CONFIG)
    assert predictors.heard(POD) == Heard()


def test_a_pod_that_went_to_another_config_is_not_forgotten_with_the_first(
    port: AdminPort, predictors: Predictors
) -> None:
    watch(predictors)
    other = ("team-a", "other")
    predictors.watch(other, {POD: Wanted("127.0.0.1", "1", SETTINGS.digest)}, brisk=False)
    predictors.forget(CONFIG)
    until(lambda: predictors.heard(POD).asked)
