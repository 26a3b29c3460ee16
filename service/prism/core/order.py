"""In which order the documents of one request are put, where their order is free.

`TreeWalk` is the default, `ByUtility` the paper's, `AsWritten` the caller's. All are pure and deterministic: equal
demand and equal tree give equal order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from prism.core.demand import EVERYBODY, DemandLedger, DemandSets, Utility, Weights
from prism.core.tree import Anchor


@dataclass(frozen=True, slots=True)
class Document:
    """A segment that may move. Two entries of one request may be the same document."""

    identity: bytes
    group: bytes


class DocumentOrder(Protocol):
    def arrange(self, head: Anchor | None, documents: Sequence[Document], ledger: DemandLedger) -> list[int]:
        """The order to use.

        Args:
            head: where the tree stands before the first document; None if nothing of the prompt is cached.
            documents: as the caller wrote them.
            ledger: current demand.

        Returns:
            Indices into `documents`, first to stand first.
        """
        ...

    def still_stands(self, order: Sequence[int], head: Anchor | None, documents: Sequence[Document]) -> bool:
        """Whether an order that was worked out a little before may be used as it is, whatever demand has changed."""
        return False


class AsWritten(DocumentOrder):
    """The caller's order."""

    def arrange(self, head: Anchor | None, documents: Sequence[Document], ledger: DemandLedger) -> list[int]:
        return list(range(len(documents)))

    def still_stands(self, order: Sequence[int], head: Anchor | None, documents: Sequence[Document]) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class ByUtility(DocumentOrder):
    """Highest utility first, each document by itself: the paper's scheme."""

    weights: Weights

    def arrange(self, head: Anchor | None, documents: Sequence[Document], ledger: DemandLedger) -> list[int]:
        def rank(index: int) -> tuple[Utility, float, bytes]:
            group = documents[index].group
            return self.weights.of(ledger.demand(group)), ledger.frequency(group), documents[index].identity

        return sorted(range(len(documents)), key=rank, reverse=True)


@dataclass(frozen=True, slots=True)
class TreeWalk(DocumentOrder):
    """Down the tree as far as it holds this request's own documents, then by who is wanted together.

    The walk takes the path with the most cached tokens. What is left follows one by one: the document that most
    requests want together with all that stand before it, by weighted joint demand; where nobody does, the one wanted
    most, then the one used most often, so that paths of the popular form early and stay.
    """

    weights: Weights
    expansions: int = 256
    """Bound on the nodes that one walk looks at."""

    def still_stands(self, order: Sequence[int], head: Anchor | None, documents: Sequence[Document]) -> bool:
        # Where no other way is cached further down, the rest is a guess at demand, and a step ago it was as good.
        deepest, _ = self._walk(head, documents)
        return cached_blocks(head, documents, order) >= deepest

    def arrange(self, head: Anchor | None, documents: Sequence[Document], ledger: DemandLedger) -> list[int]:
        _, walked = self._walk(head, documents)
        left = [index for index in range(len(documents)) if index not in walked]
        return walked + self._rest([documents[i].group for i in walked], left, documents, ledger)

    def _walk(self, head: Anchor | None, documents: Sequence[Document]) -> tuple[int, list[int]]:
        """Full blocks that are cached along the best path, and the path."""
        return _Walk(documents, self.expansions).deepest(head) if head is not None else (0, [])

    def _rest(
        self, before: list[bytes], left: list[int], documents: Sequence[Document], ledger: DemandLedger
    ) -> list[int]:
        if len(left) < 2:
            return left
        path = EVERYBODY
        for group in before:
            path = path.joint(ledger.sets(group))
        sets = {index: ledger.sets(documents[index].group) for index in left}
        alone: dict[int, tuple[Utility, float, bytes]] = {}
        for index, wanted in sets.items():
            document = documents[index]
            utility = self.weights.of(wanted.counts())
            alone[index] = utility, ledger.frequency(document.group), document.identity
        # Each choice asks for every document that is left, at every admission: no question that needs no answer.
        out: list[int] = []
        while len(left) > 1 and any(path):
            if path is EVERYBODY:
                best = max(left, key=alone.__getitem__)
            else:
                best = max(left, key=lambda index: (self._together(path, sets[index]), alone[index]))
            left.remove(best)
            out.append(best)
            path = path.joint(sets[best])
        return out + sorted(left, key=alone.__getitem__, reverse=True)

    def _together(self, path: DemandSets, wanted: DemandSets) -> Utility:
        return self.weights.utility(
            (path.active & wanted.active).bit_count(),
            (path.recent & wanted.recent).bit_count(),
            (path.queued & wanted.queued).bit_count(),
        )


class _Walk:
    """Depth-first search for the path of a request's own documents that holds the most cached blocks."""

    def __init__(self, documents: Sequence[Document], expansions: int) -> None:
        self._places: dict[bytes, list[int]] = {}
        for index, document in enumerate(documents):
            self._places.setdefault(document.identity, []).append(index)
        self._left = expansions

    def deepest(self, head: Anchor) -> tuple[int, list[int]]:
        """Full blocks that are cached along the best path, and the path."""
        return self._below(head)

    def _below(self, anchor: Anchor) -> tuple[int, list[int]]:
        best: tuple[int, list[int]] = (anchor.blocks, [])
        for identity in self._next(anchor):
            if self._left <= 0:
                break
            self._left -= 1
            place = self._places[identity].pop(0)
            blocks, path = self._below(anchor.children[identity])
            self._places[identity].insert(0, place)
            # At equal depth the longer path: documents shorter than a block are found again below it.
            if (blocks, len(path) + 1) > (best[0], len(best[1])):
                best = (blocks, [place, *path])
        return best

    def _next(self, anchor: Anchor) -> list[bytes]:
        wanted, there = self._places, anchor.children
        few, many = (wanted, there) if len(wanted) < len(there) else (there, wanted)
        return [identity for identity in few if identity in many and wanted[identity]]


def cached_blocks(head: Anchor | None, documents: Sequence[Document], order: Sequence[int]) -> int:
    """Full blocks the tree holds of a prompt that continues `head` with its documents in this order."""
    blocks = 0
    anchor = head
    for index in order:
        if anchor is None:
            break
        blocks = anchor.blocks
        anchor = anchor.children.get(documents[index].identity)
    return anchor.blocks if anchor is not None else blocks
