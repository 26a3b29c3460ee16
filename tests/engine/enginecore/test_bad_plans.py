"""What crosses to the scheduler in `extra_args` may be anything: it is a plan, or the request is served without one."""

from __future__ import annotations

import itertools
import random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.enginecore.rig import Rig, RigFactory, rag, spec_of, tight, tokens_of

from prism.engine.wire import EXTRA_ARGS_KEY, encode_plan

DOCUMENTS = [tokens_of(("document", n), 20 + 9 * n) for n in range(4)]
PROMPT = rag(DOCUMENTS, tokens_of("question", 12), system=tokens_of("system", 24))
GOOD = encode_plan(PROMPT.plan)
OTHERS = [
    encode_plan(rag(DOCUMENTS[:2], tokens_of("q", 5)).plan),
    encode_plan(rag(DOCUMENTS[::-1], tokens_of("question", 12), system=tokens_of("system", 24)).plan),
    encode_plan(rag(DOCUMENTS, tokens_of("question", 12), movable=False, namespace="other").plan),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """The good plan with some bytes changed, cut off or put in."""
    data = bytearray(GOOD)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["change", "cut", "put in"])):
            case "change":
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at : at + draw(st.integers(1, 8))]
            case _:
                data[at:at] = draw(st.binary(min_size=1, max_size=4))
        if not data:
            break
    return bytes(data)


@st.composite
def disordered(draw: st.DrawFn) -> bytes:
    """A message of the right shape whose bounds, runs, kinds and digests are other ones."""
    message: list[Any] = msgspec.msgpack.decode(GOOD)
    number = st.integers(-1, len(PROMPT.tokens) + 1)
    for segment in message[2]:
        if draw(st.booleans()):
            segment[draw(st.sampled_from([1, 2]))] = draw(number)
        if draw(st.integers(0, 5)) == 0:
            segment[3] = message[2][0][3]
        if draw(st.integers(0, 5)) == 0:
            segment[0] = draw(st.sampled_from(["private", "history", "none of these"]))
    for run in message[3]:
        if draw(st.integers(0, 3)) == 0:
            run[draw(st.sampled_from([0, 1]))] = draw(number)
    if draw(st.integers(0, 3)) == 0:
        message[4] = draw(st.lists(st.integers(-1, 6), max_size=5))
    return msgspec.msgpack.encode(message)


ANYTHING = st.binary(max_size=80) | st.text(max_size=9) | st.integers() | st.lists(st.integers(), max_size=3)
NUMBERS = itertools.count()
PLANS = st.lists(damaged() | disordered() | ANYTHING | st.sampled_from([GOOD, *OTHERS]), min_size=1, max_size=8)


def test_any_plan_is_served_and_leaves_nothing_behind(rig: RigFactory) -> None:
    one = rig(limits=tight(60), spec=spec_of(reorder="Declared"))

    @settings(max_examples=150)
    @given(PLANS, st.randoms(use_true_random=False))
    def served(plans: list[object], chance: random.Random) -> None:
        serve_all(one, plans, chance)
        left = one.leftovers()
        assert not any(left.values()), left

    served()


def serve_all(one: Rig, plans: list[object], chance: random.Random) -> None:
    names = [f"r{next(NUMBERS)}" for _ in plans]
    for name, plan in zip(names, plans, strict=True):
        request = one.make(name, PROMPT.tokens, chance.randrange(1, 30), params={"extra_args": {EXTRA_ARGS_KEY: plan}})
        one.add_made(request)
        if chance.random() < 0.5:
            one.move()
    one.run()
    assert set(names) <= set(one.finished)
