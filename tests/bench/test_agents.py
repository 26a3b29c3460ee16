"""Recorded sessions as workloads."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer

from prism.bench.agents import AgentPrompts, agents
from prism.bench.arrivals import poisson_times
from prism.bench.real_data import MessageTable, Recording, Turn
from prism.core.segments import SegmentKind

MESSAGES = [
    ("system", [1, 2, 3]),
    ("user", [4, 5]),
    ("assistant", [6]),
    ("assistant", [7, 8]),
    ("tool", [9, 10, 11]),
]
SESSION = [Turn([0, 1, 2], 5, None), Turn([0, 1, 3, 4, 1, 2], 6, 0.5)]
RECORDING = Recording(MESSAGES, [SESSION])


def test_a_turn_is_its_messages_and_the_opening_of_the_answer() -> None:
    request = AgentPrompts(RECORDING).build("a", SESSION[1])
    assert request.tokens == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 4, 5, 6]
    assert request.output_tokens == 6


def test_the_last_user_message_is_private_until_it_is_history() -> None:
    prompts = AgentPrompts(RECORDING)
    first, second = (prompts.build(str(place), turn).plan for place, turn in enumerate(SESSION))
    assert first is not None
    assert second is not None
    assert [s.kind for s in first.segments] == [SegmentKind.SYSTEM, SegmentKind.PRIVATE]
    assert [s.kind for s in second.segments][1:] == [
        SegmentKind.HISTORY,
        SegmentKind.HISTORY,
        SegmentKind.TOOL_OUTPUT,
        SegmentKind.PRIVATE,
    ]


def test_a_session_waits_for_its_own_answers() -> None:
    workload = agents(RECORDING, poisson_times(random.Random(1), 2.0, 20.0), 1)
    first = workload.arrivals[0].request.name
    assert workload.follow_ups[first].after_s == 0.5
    assert len(workload.follow_ups) == len(workload.arrivals)


def test_messages_tokenised_alone_are_the_prompt_tokenised_whole(tokenizer_folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    prompt = "<|im_start|>system\nBe brief. <|im_end|>\n<|im_start|>user\n  Why?\n\n<|im_end|>\n<|im_start|>assistant\n"
    table = MessageTable(tokenizer)
    rows = [token for index in table.indices(prompt) for token in table.rows[index][1]]
    assert rows == tokenizer.encode(prompt, add_special_tokens=False).ids
