"""An engine that PRISM was not made for stops the start with a sentence."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import vllm
from tests.engine.enginecore.rig import RigFactory

from prism.engine import internals
from prism.engine.enginecore.scheduler import PrismAsyncScheduler
from prism.errors import IncompatibleEngine

SENTENCE = (
    f"This PRISM is made for vLLM 0.28, the installed one is {vllm.__version__}: {{}}. "
    f"Install vLLM 0.28 or a PRISM made for {vllm.__version__}."
)


def complains(what: str) -> str:
    return "^" + re.escape(SENTENCE.format(what)) + "$"


def test_the_installed_engine_is_the_one_it_was_made_for(rig: RigFactory) -> None:
    internals.check_engine()
    internals.check_scheduler(rig().scheduler)


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        (("vllm.v1.request", "Request", ("no_such",)), "vllm.v1.request.Request.no_such is not there"),
        (("vllm.v1.request", "Nothing", ("status",)), "vllm.v1.request.Nothing.status is not there"),
        (("vllm.v9.request", "Request", ("status",)), "vllm.v9.request.Request.status is not there"),
    ],
    ids=["name", "class", "module"],
)
def test_a_missing_name_is_named(
    monkeypatch: pytest.MonkeyPatch, entry: tuple[str, str, tuple[str, ...]], what: str
) -> None:
    monkeypatch.setattr(internals, "_NAMES", (*internals._NAMES, entry))
    with pytest.raises(IncompatibleEngine, match=complains(what)):
        internals.check_engine()


def test_a_missing_argument_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = ("vllm.v1.core.sched.scheduler", "Scheduler.schedule", ("hurry",))
    monkeypatch.setattr(internals, "_PARAMETERS", (entry,))
    what = "vllm.v1.core.sched.scheduler.Scheduler.schedule takes no argument hurry"
    with pytest.raises(IncompatibleEngine, match=complains(what)):
        internals.check_engine()


def test_a_request_without_the_state_that_prism_reads_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "_REQUEST_STATE", ("no_such",))
    with pytest.raises(IncompatibleEngine, match=complains("its requests have no no_such")):
        internals.check_engine()


def test_a_scheduler_without_the_state_that_prism_reads_is_named() -> None:
    with pytest.raises(IncompatibleEngine, match=complains("its scheduler has no skipped_waiting")):
        internals.check_scheduler(SimpleNamespace(waiting=[]))


def test_the_scheduler_checks_before_it_starts(monkeypatch: pytest.MonkeyPatch, rig: RigFactory) -> None:
    monkeypatch.setattr(internals, "_REQUEST_STATE", ("no_such",))
    with pytest.raises(IncompatibleEngine):
        rig(PrismAsyncScheduler)
