"""A prefix cache without an engine: prompts are texts, one letter a block, and every block finds room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from prism.core.demand import DemandLedger, Weights
from prism.core.order import Document
from prism.core.retention import DemandAware
from prism.core.segments import SegmentKind
from prism.core.tree import CLASS_NAMES, Anchor, AnchorPoint, DemandAwareRadixTree, Node


@dataclass(frozen=True)
class Part:
    """A segment of a prompt; `Part` less its tenant."""

    text: str
    kind: SegmentKind = SegmentKind.DOCUMENT
    movable: bool = False

    def identity(self, tenant: str = "") -> bytes:
        return f"{tenant}/{self.text}".encode()

    def document(self) -> Document:
        return Document(self.identity(), self.identity())


class Cache:
    """What a block pool does to its tree, and what waiting requests do to it and to the ledger."""

    def __init__(self, window: int = 64, weights: Weights | None = None) -> None:
        self.ledger = DemandLedger(window)
        self.tree = DemandAwareRadixTree(self.ledger, DemandAware(weights or Weights()))
        self.held: dict[bytes, int] = {}
        self._blocks = 0
        self._requests = 0

    @staticmethod
    def hashes(*parts: Part | str, tenant: str = "") -> list[bytes]:
        chain = "".join(part if isinstance(part, str) else part.text for part in parts)
        return [f"{tenant}|{chain[: size + 1]}".encode() for size in range(len(chain))]

    @staticmethod
    def points(parts: Sequence[Part | str], tenant: str = "") -> list[AnchorPoint]:
        out, at = [], 0
        for part in parts:
            at += len(part if isinstance(part, str) else part.text)
            if isinstance(part, Part):
                identity = part.identity(tenant)
                out.append(AnchorPoint(identity, identity, part.kind, at, part.movable))
        return out

    def use(self, *parts: Part | str, tenant: str = "", again: bool = False) -> Node:
        """A request is admitted. A text among the parts belongs to no segment."""
        points, hashes = self.points(parts, tenant), self.hashes(*parts, tenant=tenant)
        return self.tree.use(tenant, hashes, points, not points, points[-1].blocks if points else 0, again)

    def serve(self, *parts: Part | str, tenant: str = "", output: str = "") -> None:
        """A request from its arrival to its end; it goes on with `output`."""
        name = f"served{self._requests}"
        self._requests += 1
        self.wait(name, *parts, tenant=tenant)
        self.admit(name)
        hashes = self.hashes(*parts, output, tenant=tenant)
        for block_hash in hashes:
            if block_hash in self.held:
                self.tree.reclaim(self.held[block_hash])
            else:
                self.held[block_hash] = self._blocks
                self._blocks += 1
        self.use(*parts, tenant=tenant)
        self.tree.settle(hashes, len(hashes))
        depths = reversed(range(len(hashes)))
        self.tree.free_all([(self.held[hashes[depth]], hashes[depth], depth) for depth in depths])
        self.leave(name)

    def wait(self, name: str, *parts: Part | str, tenant: str = "") -> None:
        """A request arrives. Its documents may move, so only what stands before them is known of its prefix."""
        self.ledger.arrive(name, [point.group for point in self.points(parts, tenant)])
        fixed = [part for part in parts if isinstance(part, str) or not part.movable]
        self.tree.expect(name, self.hashes(*fixed, tenant=tenant), self.ledger.slot(name))

    def admit(self, name: str) -> None:
        self.ledger.admit(name)
        self.tree.unexpect(name)

    def leave(self, name: str) -> None:
        self.tree.unexpect(name)
        self.ledger.leave(name)

    def reset(self) -> None:
        self.tree.reset()
        self.held.clear()

    def give_up(self, count: int = 1) -> list[str]:
        """The prefixes that went, in turn."""
        return [prefix for prefix, _ in self.give_up_by_class(count)]

    def give_up_by_class(self, count: int = 1) -> list[tuple[str, str]]:
        names = {block: block_hash for block_hash, block in self.held.items()}
        out = []
        for block, eviction_class in self.tree.take(count):
            del self.held[names[block]]
            out.append((names[block].decode().removeprefix("|"), CLASS_NAMES[eviction_class]))
        return out

    def everything_in_order(self) -> list[str]:
        """All free blocks, the next to go first."""
        names = {block: block_hash for block_hash, block in self.held.items()}
        return [names[block].decode().removeprefix("|") for block in self.tree.in_order()]

    def hits(self, *parts: Part | str, tenant: str = "") -> int:
        return self.tree.match(self.hashes(*parts, tenant=tenant))

    def anchor(self, *parts: Part, tenant: str = "") -> Anchor | None:
        return self.tree.head(tenant, [part.identity(tenant) for part in parts])


@pytest.fixture
def cache() -> Cache:
    return Cache()


@pytest.fixture
def make_cache() -> type[Cache]:
    return Cache


@pytest.fixture
def system() -> Part:
    return Part("ss", SegmentKind.SYSTEM)


@pytest.fixture
def document() -> type[Part]:
    """`document("aaa", movable=True)`."""
    return Part
