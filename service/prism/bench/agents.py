"""Agent sessions: each turn's prompt is the conversation so far, and the next turn follows its answer.

Prompts, answer lengths and think times are recorded ones (`prism.bench.real_data`). The answers' tokens are made up
while simulating; the next turn holds the recorded answer, so its tokens are computed again, as in a real engine whose
template renders an answer otherwise than it was generated.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from prism.bench.real_data import Recording, Turn
from prism.bench.workloads import Arrival, FollowUp, Workload
from prism.core.segments import PromptPlan, Segment, SegmentKind, segment_identity
from prism.engine.enginecore.synthetic import SyntheticRequest

_KINDS = {
    "system": SegmentKind.SYSTEM,
    "user": SegmentKind.HISTORY,
    "assistant": SegmentKind.HISTORY,
    "tool": SegmentKind.TOOL_OUTPUT,
}


def agents(recording: Recording, times: Sequence[float], seed: int) -> Workload:
    """Sessions that begin at the given times, in random order, each at most once until all have been played."""
    rng = random.Random(f"agents {seed}")
    thinks = [turn.think_s for session in recording.sessions for turn in session if turn.think_s is not None]
    prompts = AgentPrompts(recording)
    order: list[int] = []
    arrivals: list[Arrival] = []
    follow_ups: dict[str, FollowUp] = {}
    for number, at in enumerate(times):
        if not order:
            order = rng.sample(range(len(recording.sessions)), len(recording.sessions))
        before = None
        for place, turn in enumerate(recording.sessions[order.pop()]):
            request = prompts.build(f"agent{seed}-{number}-{place}", turn)
            if before is None:
                arrivals.append(Arrival(at, request))
            else:
                think = turn.think_s if turn.think_s is not None else rng.choice(thinks)
                follow_ups[before] = FollowUp(think, request)
            before = request.name
    return Workload(tuple(arrivals), follow_ups)


class AgentPrompts:
    """Builds a turn's request: a segment a message, private where the last word is the user's."""

    def __init__(self, recording: Recording, namespace: str = "") -> None:
        self._messages = recording.messages
        self._namespace = namespace
        self._identities: dict[int, bytes] = {}

    def build(self, name: str, turn: Turn) -> SyntheticRequest:
        tokens: list[int] = []
        segments: list[Segment] = []
        *messages, opening = turn.messages
        for at, index in enumerate(messages):
            role, row = self._messages[index]
            asks = role == "user" and at == len(messages) - 1
            kind = SegmentKind.PRIVATE if asks else _KINDS[role]
            identity = self._identity(index)
            segments.append(Segment(kind, len(tokens), len(tokens) + len(row), identity, identity))
            tokens.extend(row)
        tokens.extend(self._messages[opening][1])
        plan = PromptPlan(self._namespace, tuple(segments))
        return SyntheticRequest(name, tokens, turn.output_tokens, plan, self._namespace or None)

    def _identity(self, index: int) -> bytes:
        if index not in self._identities:
            self._identities[index] = segment_identity(self._messages[index][1], self._namespace)
        return self._identities[index]
