"""A queue and a cache that can be followed by hand: a token is a letter, a block a token, a hash the whole prefix."""

from __future__ import annotations

import pytest

from prism.config.schema import PrismSpec
from prism.core.decisions import Decisions, Policies
from prism.core.segments import PromptPlan


def chain(letters: str) -> list[bytes]:
    """Hashes of a prompt's blocks."""
    return [letters[: end + 1].encode() for end in range(len(letters))]


class Queue:
    """Requests are named; their prompts are letters."""

    def __init__(self, policies: Policies) -> None:
        self.decisions = Decisions(1, PrismSpec(), lambda: 1e-4)
        self.decisions.play(policies)
        self._blocks = 0
        self._freed: dict[str, int] = {}

    def cache(self, *prompts: str) -> None:
        """Prompts that were computed before, and whose requests have finished."""
        for number, letters in enumerate(prompts):
            name = f"before-{letters}-{number}"
            self.arrive(name, letters)
            self.serve(name)
            self.decisions.settle(name, len(letters))
            self.decisions.leave(name)

    def arrive(self, name: str, letters: str) -> None:
        self.decisions.arrive(name, PromptPlan(""), len(letters), chain(letters), 0, 0.0)

    def serve(self, name: str) -> None:
        assert self.decisions.take(name) is not None
        self.decisions.admitted(name, 0, 0.0)

    def order(self) -> list[str]:
        """Who is served, one after another, in one pass."""
        self.decisions.begin_pass(0.0)
        served = []
        while (head := self.decisions.head(0.0)) is not None:
            name = head.waiting.request
            self.serve(name)
            served.append(name)
        return served

    def free(self, *prompts: str) -> None:
        """All blocks of these prompts are used by nobody."""
        tree = self.decisions.tree
        for letters in prompts:
            for depth, block_hash in enumerate(chain(letters)):
                if block_hash.decode() not in self._freed:
                    self._freed[block_hash.decode()] = self._blocks
                    tree.free(self._blocks, block_hash, depth)
                    self._blocks += 1

    def given_up(self, count: int) -> list[str]:
        """The prefixes whose last block goes, in order."""
        by_block = {block: letters for letters, block in self._freed.items()}
        return [by_block[block] for block, _ in self.decisions.tree.take(count)]


@pytest.fixture
def queue() -> type[Queue]:
    return Queue
