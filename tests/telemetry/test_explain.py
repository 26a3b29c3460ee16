"""What is said of a request: its wait, its segments, and nothing of other tenants unless asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from prism.core.reuse import LRU, RESET, Loss, Reuse, SegmentReuse
from prism.core.tree import CLASS_NAMES
from prism.telemetry.explain import LOST_AS, Explanation, explain
from prism.telemetry.timeline import Admission, RequestTimeline

MakeTimeline = Callable[..., RequestTimeline]
T = 1000.0
TRACE = "0af7651916cd43dd8448eb211c80319c"


def verdict(reuse: Reuse, loss: Loss | None = None, cached: int = 0) -> SegmentReuse:
    return SegmentReuse("document", 100, 200, b"12345678", cached, reuse, loss)


@pytest.fixture
def explained(make_timeline: MakeTimeline, admission: Admission) -> Callable[..., Explanation]:
    """Explains a request admitted 0.2 s after its arrival with these verdicts on its segments."""

    def make(*reuse: SegmentReuse, all_tenants: bool = False, others: frozenset[bytes] = frozenset()) -> Explanation:
        timeline = make_timeline()
        engine = timeline.engine_added(T + 0.02, "a")
        engine.queued(T + 0.02, 41)
        engine.admitted(T + 0.2, replace(admission, reuse=reuse))
        engine.sent_by_others = others
        return explain(timeline, TRACE, T + 5, all_tenants=all_tenants)

    return make


def test_an_ended_request_is_told_with_its_ttft_and_its_wait(finished: RequestTimeline) -> None:
    told = explain(finished, TRACE, T + 99)
    head, ttft, wait, prompt = told.lines
    assert head == f"req-1: finished with 200, model smol, trace {TRACE}"
    assert ttft == "TTFT 0.510 s = admission_wait 0.200 + prefill 0.300 + first_token 0.010"
    assert wait == (
        "waited 0.200 s for admission, 0.019 s of it rendering, then behind 5 waiting requests, at last because the KV "
        "cache had no room for it, overtaken 2 times in a row as the oldest, admitted by the hot lane"
    )
    assert prompt.startswith("600 of 900 prompt tokens came from the cache; documents in the order 1, 0;")


def test_a_request_that_still_waits_says_for_how_long(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.engine_added(T, "a").queued(T, 3)
    told = explain(timeline, TRACE, T + 7)
    assert (told.state, told.wait.seconds, told.wait.waited_for, told.segments) == ("waiting", 7.0, None, [])


def test_a_refused_request_says_why(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline(model=None)
    timeline.refused(T + 0.001, 429, "queue_full")
    assert explain(timeline, TRACE, T).lines[0].startswith("req-1: refused with 429 (queue_full), model unknown")


@pytest.mark.parametrize(
    ("segment", "said"),
    [
        (verdict(Reuse.HIT, cached=100), "hit"),
        (verdict(Reuse.HIT, cached=92), "hit, but for 8 tokens that share a block with what follows"),
        (verdict(Reuse.EVICTED, Loss("private", T - 1.8)), "missed: evicted 2.0 s before as a private suffix"),
        (verdict(Reuse.EVICTED), "missed: it was admitted before and is gone"),
        (verdict(Reuse.DIFFERS, cached=32), "differs from what is cached in the block from token 132 on"),
        (verdict(Reuse.NOT_AT_PREFIX), "missed: not at a prefix, it was seen behind other segments only"),
        (verdict(Reuse.NEVER_SEEN), "missed: never seen"),
        (verdict(Reuse.SHORT_BLOCK), "missed: it ends in a block that the prompt does not fill"),
        (verdict(Reuse.LAST_BLOCK), "cached, but the block of a prompt's last token"),
    ],
)
def test_each_verdict_is_said_in_words(explained: Callable[..., Explanation], segment: SegmentReuse, said: str) -> None:
    told = explained(segment)
    assert told.segments[0].why.startswith(said)
    assert told.lines[-1] == f"  tokens 100 to 200, document 31323334: {told.segments[0].why}"


def test_behind_a_miss_the_earlier_one_is_the_reason(explained: Callable[..., Explanation]) -> None:
    told = explained(verdict(Reuse.NEVER_SEEN), verdict(Reuse.NOT_AT_PREFIX))
    assert told.segments[1].why == "missed: not at a prefix, since an earlier segment missed"


def test_nothing_of_other_tenants_is_told_unless_asked(explained: Callable[..., Explanation]) -> None:
    others = frozenset({b"12345678"})
    kept = explained(verdict(Reuse.NEVER_SEEN), others=others)
    unaware = explained(verdict(Reuse.NEVER_SEEN))
    assert kept == unaware
    assert kept.segments[0].other_tenant is None


def test_asked_across_tenants_it_is_told(explained: Callable[..., Explanation]) -> None:
    told = explained(verdict(Reuse.NEVER_SEEN), all_tenants=True, others=frozenset({b"12345678"}))
    assert told.segments[0].other_tenant is True
    assert "another tenant sent it" in told.segments[0].why
    assert explained(verdict(Reuse.NEVER_SEEN), all_tenants=True).segments[0].other_tenant is False


def test_lost_facts_are_said(make_timeline: MakeTimeline) -> None:
    timeline = make_timeline()
    timeline.facts_missing()
    timeline.finished(T + 1)
    assert explain(timeline, TRACE, T).lines[-1].startswith("some of what the engine said")


def test_every_way_to_lose_a_prefix_has_words() -> None:
    assert set(LOST_AS) == (set(CLASS_NAMES) - {"unhashed"}) | {LRU, RESET}


def test_the_explanation_survives_its_way_over_http(explained: Callable[..., Explanation]) -> None:
    told = explained(verdict(Reuse.EVICTED, Loss("lru", T)), verdict(Reuse.NOT_AT_PREFIX))
    assert msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(told)), type=Explanation) == told
