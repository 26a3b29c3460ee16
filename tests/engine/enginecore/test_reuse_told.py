"""Why segments hit or missed, as EngineCore tells it: vLLM's own cache decides, PRISM only finds the words."""

from __future__ import annotations

import pytest
from tests.engine.enginecore.channel import Channel, Told
from tests.engine.enginecore.rig import BLOCK, Rag, Rig, rag, spec_of, tight, tokens_of

from prism.core.reuse import Reuse, SegmentReuse
from prism.engine.wire import Admitted

DOCUMENT = 4 * BLOCK


def prompt(*documents: str, question: str = "q", salt: str = "") -> Rag:
    """A system part and documents, each of whole blocks, with a question of one block and a bit."""
    return rag(
        [tokens_of(name, DOCUMENT) for name in documents],
        tokens_of(question, BLOCK + 3),
        system=tokens_of("system", 2 * BLOCK),
        movable=False,
        namespace=salt,
    )


def serve(rig: Rig, channel: Channel, name: str, made: Rag, salt: str | None = None) -> tuple[SegmentReuse, ...]:
    """One request from arrival to end; what was told of its segments."""
    rig.serve(name, made.tokens, plan=made.plan, salt=salt)
    (told,) = [fact for fact in channel.of(name) if isinstance(fact, Admitted)]
    assert sum(one.cached_tokens for one in told.reuse) == told.cached_tokens
    return told.reuse


def verdicts(reuse: tuple[SegmentReuse, ...]) -> list[str]:
    return [str(one.reuse) for one in reuse]


def test_a_shared_beginning_hits_and_what_comes_behind_a_miss_is_not_at_a_prefix(told: Told, channel: Channel) -> None:
    rig = told(tight(200))
    serve(rig, channel, "first", prompt("a", "b"))
    second = serve(rig, channel, "second", prompt("a", "b", question="other"))
    third = serve(rig, channel, "third", prompt("c", "b"))
    assert verdicts(second) == ["hit", "hit", "hit", "never_seen"]
    assert verdicts(third) == ["hit", "never_seen", "not_at_prefix", "not_at_prefix"]


@pytest.mark.parametrize(("retention", "how"), [("LRU", {"lru"}), ("DemandAware", {"private", "unprotected"})])
def test_what_was_evicted_says_how_and_when(told: Told, channel: Channel, retention: str, how: set[str]) -> None:
    rig = told(tight(40), spec_of(retention=retention))
    serve(rig, channel, "first", prompt("a"))
    began = rig.now
    rig.serve("filler", tokens_of("filler", 38 * BLOCK))
    ended = rig.now
    missed = [one for one in serve(rig, channel, "again", prompt("a")) if one.reuse is not Reuse.HIT]
    assert missed[0].reuse is Reuse.EVICTED
    assert missed[0].loss is not None
    assert missed[0].loss.how in how
    assert began <= missed[0].loss.at <= ended


def test_an_emptied_cache_is_the_reason(told: Told, channel: Channel) -> None:
    rig = told(tight(100))
    serve(rig, channel, "first", prompt("a"))
    rig.scheduler.reset_prefix_cache()
    first, *_ = serve(rig, channel, "again", prompt("a"))
    assert (first.reuse, first.loss and first.loss.how) == (Reuse.EVICTED, "reset")


def test_another_tenants_prompt_was_never_seen(told: Told, channel: Channel) -> None:
    rig = told(tight(100))
    serve(rig, channel, "first", prompt("a", salt="one"), salt="one")
    assert set(verdicts(serve(rig, channel, "second", prompt("a", salt="two"), salt="two"))) == {"never_seen"}


def test_a_plain_prompt_is_told_as_one(told: Told, channel: Channel) -> None:
    rig = told(tight(100))
    tokens = tokens_of("plain", 10 * BLOCK)
    rig.serve("first", tokens)
    rig.serve("second", [*tokens[: 5 * BLOCK], *tokens_of("else", 5 * BLOCK)])
    (second,) = [fact for fact in channel.of("second") if isinstance(fact, Admitted)]
    assert [(one.kind, one.reuse, one.cached_tokens) for one in second.reuse] == [("plain", "differs", 5 * BLOCK)]


def test_a_whole_prompt_that_is_cached_has_its_last_block_computed(told: Told, channel: Channel) -> None:
    rig = told(tight(100))
    made = rag([tokens_of("a", DOCUMENT)], tokens_of("q", 2 * BLOCK), movable=False)
    serve(rig, channel, "first", made)
    assert verdicts(serve(rig, channel, "again", made)) == ["hit", "last_block"]
