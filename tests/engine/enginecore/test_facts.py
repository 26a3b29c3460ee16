"""What EngineCore tells the serving process, over a real ZeroMQ channel."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TypeVar

import pytest
from tests.engine.enginecore.channel import Channel, Told
from tests.engine.enginecore.rig import BLOCK, RigFactory, Stream, play, rag, spec_of, tight, tokens_of

from prism.engine.enginecore.sender import FactSender, HeartbeatThread
from prism.engine.internals import ASYNC_SCHEDULER
from prism.engine.wire import (
    CONFIG_KEY,
    Admitted,
    Ended,
    Fact,
    Gauges,
    Heartbeat,
    PrefillChunk,
    PrefillDone,
    Resumed,
)


def kinds(facts: list[Fact]) -> list[str]:
    """The facts by name, chunks that follow each other as one."""
    names = [type(fact).__name__ for fact in facts]
    return [name for place, name in enumerate(names) if place == 0 or name != names[place - 1]]


T = TypeVar("T")


def only(kind: type[T], facts: list[Fact]) -> T:
    (found,) = [fact for fact in facts if isinstance(fact, kind)]
    return found


# ---- a request's way ----

WHOLE = ["Queued", "Admitted", "PrefillChunk", "PrefillDone", "Ended"]


def test_each_part_of_a_requests_way_is_told_once_and_in_order(told: Told, channel: Channel) -> None:
    told(tight(400)).serve("one", tokens_of("one", 1300), 20)
    assert kinds(channel.of("one")) == WHOLE


def test_a_request_whose_first_token_is_its_last_is_told_whole(told: Told, channel: Channel) -> None:
    told().serve("one", tokens_of("one", 40), 1)
    assert kinds(channel.of("one")) == WHOLE


def test_every_request_of_a_stream_is_told_whole(told: Told, channel: Channel) -> None:
    one = told(tight(400))
    play(one, Stream(2, plans=True, abort_share=0.0))
    by_request = defaultdict(list)
    for fact in channel.read():
        by_request[getattr(fact, "request", "")].append(fact)
    by_request.pop("")
    assert len(by_request) == 60
    assert all(kinds(facts) == WHOLE for facts in by_request.values())


def test_chunks_tile_the_prompt_from_its_cached_part_to_its_end(told: Told, channel: Channel) -> None:
    one = told(tight(400))
    one.serve("head", tokens_of("prompt", 1300)[:200])
    one.serve("one", tokens_of("prompt", 1300), 20)
    chunks = [(fact.start, fact.end) for fact in channel.of("one") if isinstance(fact, PrefillChunk)]
    assert chunks == [(192, 704), (704, 1216), (1216, 1300)]


def test_chunks_of_all_requests_of_a_rough_stream_tile_their_prompts(told: Told, channel: Channel) -> None:
    """After a preemption they start again where the cache ends."""
    one = told(tight(28))
    play(one, Stream(3, plans=True, abort_share=0.0))
    at: dict[str, int] = {}
    for fact in channel.read():
        if isinstance(fact, Admitted | Resumed):
            at[fact.request] = fact.cached_tokens
        elif isinstance(fact, PrefillChunk):
            assert fact.start == at[fact.request] < fact.end
            at[fact.request] = fact.end
        elif isinstance(fact, PrefillDone):
            assert at.pop(fact.request) == len(one.prompts[fact.request])


def test_times_of_a_request_never_go_back(told: Told, channel: Channel) -> None:
    told(tight(400)).serve("one", tokens_of("one", 1300), 20)
    times = [fact.at for fact in channel.of("one")]
    assert times == sorted(times)


def test_prefill_is_done_when_the_step_is_processed_and_not_when_it_is_scheduled(told: Told, channel: Channel) -> None:
    one = told()
    one.add("one", tokens_of("one", 40), 5)
    one.schedule()
    one.schedule()
    assert kinds(channel.of("one")) == ["Queued", "Admitted", "PrefillChunk"]
    one.complete()
    assert kinds(channel.of("one")) == ["Queued", "Admitted", "PrefillChunk", "PrefillDone"]


def test_an_aborted_request_ends_with_abort(told: Told, channel: Channel) -> None:
    one = told()
    one.add("waits", tokens_of("waits", 40))
    one.abort("waits")
    one.run()
    assert kinds(channel.of("waits")) == ["Queued", "Ended"]
    assert only(Ended, channel.of("waits")).reason == "abort"


def test_a_finished_request_ends_with_vllms_reason(told: Told, channel: Channel) -> None:
    told().serve("one", tokens_of("one", 40), 3)
    assert only(Ended, channel.of("one")).reason == "length"


def test_a_preemption_and_its_end_are_told(told: Told, channel: Channel) -> None:
    one = told(tight(14))
    one.add("older", tokens_of("older", 70), 60)
    one.add("preempted", tokens_of("preempted", 70), 80)
    one.run()
    assert kinds(channel.of("preempted")) == [*WHOLE[:4], "Preempted", "Resumed", "Ended"]


def test_a_request_whose_first_token_was_dropped_has_its_prefill_done_once(told: Told, channel: Channel) -> None:
    """A reset of the cache with running requests throws the step in flight away; the prompt is computed again."""
    one = told()
    one.add("one", tokens_of("one", 40), 5)
    one.schedule()
    one.scheduler.reset_prefix_cache(reset_running_requests=True)
    one.complete()
    assert "PrefillDone" not in kinds(channel.of("one"))
    one.run()
    only(PrefillDone, channel.of("one"))


# ---- what admission says ----

SYSTEM, A, B = tokens_of("system", 32), tokens_of("a", 64), tokens_of("b", 48)


@pytest.fixture
def admitted(told: Told, channel: Channel) -> Admitted:
    """Of a prompt whose documents stand the other way round in the cache."""
    one = told()
    resident = rag([A, B], tokens_of("q1", 20), system=SYSTEM, movable=False)
    asked = rag([B, A], tokens_of("q2", 20), system=SYSTEM)
    one.serve("resident", resident.tokens, plan=resident.plan)
    one.serve("asked", asked.tokens, plan=asked.plan)
    return only(Admitted, channel.of("asked"))


def test_admission_tells_the_order_that_was_used(admitted: Admitted) -> None:
    assert admitted.order == [1, 0]


def test_admission_tells_cached_tokens_by_kind(admitted: Admitted) -> None:
    assert (admitted.cached_tokens, admitted.prompt_tokens) == (144, 164)
    assert admitted.cached_by_kind == {"system": 32, "document": 112, "private": 0}
    assert admitted.tokens_by_kind == {"system": 32, "document": 112, "private": 20}


def test_admission_tells_segments_hit_of_segments(admitted: Admitted) -> None:
    assert (admitted.segments_hit, admitted.segments) == (3, 3)


def test_a_plain_prompts_tokens_are_of_no_segment(told: Told, channel: Channel) -> None:
    told().serve("one", tokens_of("one", 40))
    assert only(Admitted, channel.of("one")).tokens_by_kind == {"plain": 40}


@pytest.mark.parametrize(("order", "lane"), [("Prism", "hot"), ("Paper", "hot"), ("FCFS", "none"), ("LPM", "none")])
def test_admission_tells_the_lane(told: Told, channel: Channel, order: str, lane: str) -> None:
    told(spec=spec_of(order)).serve("one", tokens_of("one", 40))
    assert only(Admitted, channel.of("one")).lane == lane


def test_a_request_that_did_not_wait_says_so(told: Told, channel: Channel) -> None:
    told().serve("one", tokens_of("one", 40))
    assert only(Admitted, channel.of("one")).why == "none"


def test_an_urgent_request_behind_a_full_engine_waited_for_slots(told: Told, channel: Channel) -> None:  # B7
    one = told(tight(200, max_running=1, policy="priority"))
    one.add("long", tokens_of("long", 40), 60, priority=5)
    one.run_for(6)
    one.add("urgent", tokens_of("urgent", 40), priority=0)
    one.run()
    assert one.finished == ["long", "urgent"]
    assert only(Admitted, channel.of("urgent")).why == "slots"


def test_a_request_for_which_there_are_no_blocks_waited_for_memory(told: Told, channel: Channel) -> None:
    one = told(tight(10))
    one.add("long", tokens_of("long", 7 * BLOCK), 20)
    one.run_for(6)
    one.add("large", tokens_of("large", 7 * BLOCK))
    one.run()
    assert only(Admitted, channel.of("large")).why == "memory"


def test_a_great_prompt_that_made_way_waited_for_memory(told: Told, channel: Channel) -> None:
    one = told(tight(20))
    one.add("running", tokens_of("running", 8 * BLOCK), 40)
    one.run_for(6)
    one.add("great", tokens_of("great", 14 * BLOCK))
    one.add("little", tokens_of("little", 2 * BLOCK))
    one.run()
    assert one.finished == ["little", "running", "great"]
    little, great = (only(Admitted, channel.of(name)) for name in ("little", "great"))
    assert (little.lane, great.why, great.overtaken) == ("hot", "memory", 1)


def test_a_request_behind_a_long_prefill_waited_for_budget(told: Told, channel: Channel) -> None:
    one = told(tight(400))
    one.add("long", tokens_of("long", 3000))
    one.move()
    one.add("short", tokens_of("short", 40))
    one.run()
    assert only(Admitted, channel.of("short")).why == "budget"


def test_a_request_that_was_passed_waited_for_its_turn(told: Told, channel: Channel) -> None:
    one = told(tight(200, max_running=1), spec=spec_of("Paper", coldLane={"quota": 0.5}))
    hot = [rag([A], tokens_of(number, 20), movable=False) for number in range(4)]
    one.add("running", hot[0].tokens, 20, plan=hot[0].plan)
    one.move()
    one.add("passed", tokens_of("passed", 40))
    for number, prompt in enumerate(hot):
        one.add(f"hot-{number}", prompt.tokens, plan=prompt.plan)
    one.run()
    fact = only(Admitted, channel.of("passed"))
    assert (fact.why, fact.lane, fact.overtaken) == ("order", "cold", 1)


# ---- the channel ----


def test_batches_are_numbered_without_a_gap(told: Told, channel: Channel) -> None:
    play(told(), Stream(1, requests=20))
    channel.read()
    assert [batch.sequence for batch in channel.batches] == list(range(len(channel.batches)))


def test_an_absent_reader_blocks_nobody_and_what_is_lost_is_counted(tmp_path: Path) -> None:
    sender = FactSender(f"ipc://{tmp_path}/nobody", 0)
    for number in range(5000):
        sender.send([Ended(str(number), 0.0, "stop")])
    assert sender.dropped == 5000 - 4096
    sender.close()


def test_a_reader_that_comes_late_learns_how_much_it_missed(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/late"
    sender = FactSender(address, 3)
    for number in range(5000):
        sender.send([Ended(str(number), 0.0, "stop")])
    late = Channel(address)
    late.wait_for(lambda fact: isinstance(fact, Ended) and fact.request == "4000")
    sender.send([Ended("last", 0.0, "stop")])
    late.wait_for(lambda fact: isinstance(fact, Ended) and fact.request == "last")
    assert (late.batches[-1].engine, late.batches[-1].dropped) == (3, sender.dropped)
    sender.close()
    late.close()


def test_work_goes_on_when_nobody_reads(rig: RigFactory, tmp_path: Path) -> None:
    one = rig(ASYNC_SCHEDULER, tight(28), None, {CONFIG_KEY: {"facts_address": f"ipc://{tmp_path}/nobody"}})
    play(one, Stream(1))
    assert not any(one.leftovers().values())


def test_without_an_address_nothing_is_kept_for_sending(rig: RigFactory) -> None:
    one = rig()
    play(one, Stream(1, requests=10))
    assert one.prism.sender._pending == []


def test_a_closed_sender_sends_nothing_more_and_says_nothing(channel: Channel) -> None:
    sender = FactSender(channel.address, 0)
    sender.close()
    sender.send([Ended("late", 0.0, "stop")])
    assert channel.read() == []


# ---- heartbeat and gauges ----


def test_the_heart_beats_whatever_the_step_does(channel: Channel) -> None:
    sender = FactSender(channel.address, 0)
    beat = HeartbeatThread(sender, lambda: time.monotonic() - 5.0, time.monotonic, every_seconds=0.02)
    beat.start()
    found = channel.wait_for(lambda fact: isinstance(fact, Heartbeat))
    beat.stop()
    beat.join()
    assert isinstance(found[0], Heartbeat)
    assert found[0].step_seconds == pytest.approx(5.0, abs=0.5)
    sender.close()


def test_an_idle_engines_heart_beats_with_no_step(told: Told, channel: Channel) -> None:
    told()
    (found, *_) = channel.wait_for(lambda fact: isinstance(fact, Heartbeat))
    assert isinstance(found, Heartbeat)
    assert found.step_seconds == 0.0


def test_the_step_under_way_is_timed_until_it_is_processed(told: Told) -> None:
    one = told()
    one.add("one", tokens_of("one", 40))
    one.schedule()
    assert one.prism._step_began is not None
    one.complete()
    assert one.prism._step_began is None


def gauges(channel: Channel) -> list[Gauges]:
    return [fact for fact in channel.read() if isinstance(fact, Gauges)]


def test_gauges_come_at_most_twice_a_second(told: Told, channel: Channel) -> None:
    one = told(tight(100))
    began = one.now
    one.add("one", tokens_of("one", 40), 200)
    one.run_for(200)
    assert len(gauges(channel)) <= 2 * (one.now - began) + 2


def test_gauges_show_an_empty_engine_after_the_last_request(told: Told, channel: Channel) -> None:
    one = told()
    play(one, Stream(1, requests=10))
    last = gauges(channel)[-1]
    assert (last.running, sum(last.waiting_by_lane.values()), last.oldest_wait_seconds) == (0, 0, 0.0)
    assert last.free_blocks == last.total_blocks - 1


def test_gauges_show_how_long_the_oldest_has_waited(told: Told, channel: Channel) -> None:  # B3
    one = told(tight(100, max_running=1))
    one.add("long", tokens_of("long", 40), 400)
    one.move()
    one.add("waits", tokens_of("waits", 40))
    arrived = one.now
    one.run_for(100)
    last = gauges(channel)[-1]
    assert last.oldest_wait_seconds == pytest.approx(last.at - arrived)
    assert last.waiting_by_lane == {"hot": 1, "cold": 0}


def test_gauges_count_every_block_that_was_taken_by_its_class(told: Told, channel: Channel) -> None:
    """63 blocks are usable: the second request takes the 58 that never held a prefix, and two of the first's."""
    one = told(spec=spec_of(retention="LRU"))
    one.serve("one", tokens_of("one", 5 * BLOCK))
    one.serve("two", tokens_of("two", 60 * BLOCK))
    counted: Counter[str] = Counter()
    for fact in gauges(channel):
        counted.update(fact.evictions)
    assert counted == {"unhashed": 5 + 58, "lru": 2}
