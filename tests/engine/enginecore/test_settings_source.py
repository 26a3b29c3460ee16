"""How settings come into force in the scheduler: a real file, the real watching thread, the real channel."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.engine.enginecore.channel import Channel, Told
from tests.engine.enginecore.rig import Rig, RigFactory, spec_of, tight, tokens_of

from prism.config.document import Settings, to_document
from prism.config.schema import Order, PrismSpec
from prism.engine.wire import Admitted, Fact, SettingsAdopted, SettingsRefused


class Settled:
    """A settings file and an engine that follows it."""

    def __init__(self, told: Told, path: Path) -> None:
        self.path = path
        self.told = told

    def write(self, generation: int, spec: PrismSpec | None = None, candidate: Settings | None = None) -> None:
        stable = Settings(spec or spec_of("Paper"), generation, "team-a/rag", "uid-1")
        beside = self.path.with_suffix(".new")
        beside.write_text(to_document(stable, candidate, pods=["pod-1"]))
        beside.replace(self.path)

    def start(self) -> Rig:
        return self.told(tight(200), config_path=str(self.path), pod_name="pod-1", poll_seconds=0.02)


@pytest.fixture
def settled(told: Told, tmp_path: Path) -> Settled:
    return Settled(told, tmp_path / "rag.yaml")


def adopted(channel: Channel) -> list[SettingsAdopted]:
    return [fact for fact in channel.read() if isinstance(fact, SettingsAdopted)]


def is_adopted(generation: int) -> Callable[[Fact], bool]:
    return lambda fact: isinstance(fact, SettingsAdopted) and fact.generation == generation


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"did not happen within {seconds} s"
        time.sleep(0.01)


def order_of(one: Rig) -> Order:
    return one.prism.decisions.spec.scheduler.order


def busy(settled: Settled) -> Rig:
    """An engine that has a request running, so that only a pass may adopt."""
    one = settled.start()
    one.add("running", tokens_of("running", 40), 400)
    one.run_for(4)
    return one


def test_defaults_are_announced_at_start_where_there_is_no_file(settled: Settled, channel: Channel) -> None:
    settled.start()
    (fact,) = adopted(channel)
    assert (fact.generation, fact.source, fact.role) == (0, "defaults", "defaults")


def test_defaults_are_announced_where_no_file_was_named(told: Told, channel: Channel) -> None:
    told()
    assert [fact.source for fact in adopted(channel)] == ["defaults"]


def test_the_file_is_in_force_from_the_start(settled: Settled, channel: Channel) -> None:
    settled.write(7)
    one = settled.start()
    assert [fact.generation for fact in adopted(channel)] == [7]
    assert order_of(one) is Order.PAPER


def test_an_announcement_carries_the_whole_spec_and_where_it_is_from(settled: Settled, channel: Channel) -> None:
    settled.write(7)
    settled.start()
    (fact,) = adopted(channel)
    assert (fact.source, fact.uid, fact.role, len(fact.digest)) == ("team-a/rag", "uid-1", "stable", 16)
    assert PrismSpec.model_validate(fact.spec) == spec_of("Paper")


def test_a_pod_that_the_candidate_names_runs_the_candidate(settled: Settled, channel: Channel) -> None:
    settled.write(7, candidate=Settings(spec_of("LPM"), 8, "team-a/rag", "uid-1"))
    one = settled.start()
    assert [(fact.generation, fact.role) for fact in adopted(channel)] == [(8, "candidate")]
    assert order_of(one) is Order.LPM


def test_a_busy_engine_adopts_at_its_next_pass_and_not_before(settled: Settled, channel: Channel) -> None:
    one = busy(settled)
    settled.write(7)
    wait_until(lambda: one.prism.settings._found is not None)
    assert not any(map(is_adopted(7), channel.read()))
    assert order_of(one) is Order.PRISM
    one.run_for(2)
    assert order_of(one) is Order.PAPER
    assert len([fact for fact in channel.read() if is_adopted(7)(fact)]) == 1


def test_an_idle_engine_announces_at_once(settled: Settled, channel: Channel) -> None:
    settled.start()
    settled.write(7)
    assert len(channel.wait_for(is_adopted(7))) == 1


def test_what_an_idle_engine_announced_is_obeyed_by_the_next_arrival_and_not_announced_again(
    settled: Settled, channel: Channel
) -> None:
    one = settled.start()
    settled.write(7)
    channel.wait_for(is_adopted(7))
    one.serve("next", tokens_of("next", 40))
    assert [fact.generation for fact in channel.read() if isinstance(fact, Admitted)] == [7]
    assert [fact.generation for fact in adopted(channel)] == [0, 7]


def test_all_admissions_of_a_pass_carry_the_generation_of_that_pass(settled: Settled, channel: Channel) -> None:
    """Two came before the change and two after it; the pass that admits them all comes last."""
    one = busy(settled)
    for number in range(2):
        one.add(f"before-{number}", tokens_of(number, 40))
    settled.write(7)
    wait_until(lambda: one.prism.settings._found is not None)
    for number in range(2, 4):
        one.add(f"after-{number}", tokens_of(number, 40))
    one.run()
    facts = [fact for fact in channel.read() if isinstance(fact, Admitted)]
    assert [fact.generation for fact in facts] == [0, 7, 7, 7, 7]


def test_a_bad_document_is_refused_once_and_the_last_good_one_stays(settled: Settled, channel: Channel) -> None:
    settled.write(7)
    one = settled.start()
    settled.path.write_text("stable: {source: a, generation: 8, spec: {scheduler: {order: Fastest}}}")
    (refused,) = channel.wait_for(lambda fact: isinstance(fact, SettingsRefused))
    assert isinstance(refused, SettingsRefused)
    assert refused.reason == "invalid_value"
    assert "order" in refused.message
    one.serve("next", tokens_of("next", 40))
    time.sleep(0.1)
    assert len([fact for fact in channel.read() if isinstance(fact, SettingsRefused)]) == 1
    assert [fact.generation for fact in channel.read() if isinstance(fact, Admitted)] == [7]


def test_a_bad_document_at_start_leaves_the_defaults(settled: Settled, channel: Channel) -> None:
    settled.path.write_text("scheduler: {order: Prism}")
    settled.start()
    assert [fact.generation for fact in adopted(channel)] == [0]
    assert [fact.reason for fact in channel.read() if isinstance(fact, SettingsRefused)] == ["wrong_form"]


def test_the_same_settings_are_announced_again_after_a_refusal(settled: Settled, channel: Channel) -> None:
    settled.write(7)
    settled.start()
    settled.path.write_text("")
    channel.wait_for(lambda fact: isinstance(fact, SettingsRefused))
    settled.write(7)
    wait_until(lambda: len(adopted(channel)) == 2)
    assert [fact.generation for fact in adopted(channel)] == [7, 7]


def test_a_file_that_is_gone_is_refused_as_missing_and_the_last_good_one_stays(
    settled: Settled, channel: Channel
) -> None:
    settled.write(7)
    one = settled.start()
    settled.path.unlink()
    (refused,) = channel.wait_for(lambda fact: isinstance(fact, SettingsRefused))
    assert isinstance(refused, SettingsRefused)
    assert refused.reason == "missing"
    assert order_of(one) is Order.PAPER


def test_retention_changes_with_the_settings(rig: RigFactory) -> None:
    one = rig(limits=tight(2))
    assert one.prism._blocks.demand_aware
    one.prism.adopt_settings(spec_of(retention="LRU"))
    assert not one.prism._blocks.demand_aware
