"""The order in which vLLM's free blocks are used up.

`BlockOrder` stands in the place of vLLM's `FreeKVCacheBlockQueue`: same methods, same meaning of each, another order.

    [ unhashed blocks ]  never hit anything: first, last freed first, as in stock vLLM
    [ chosen blocks   ]  hashed ones that the tree has given up ahead of the pass that will need them
    [ hashed blocks   ]  by the retention: stock LRU (the order in which they were freed), or the tree's

It keeps both orders of the hashed blocks all the time, so that the policy can change between two passes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_block_hash

from prism.core.tree import CLASS_NAMES, DemandAwareRadixTree

_FADES = 0.9
"""What passes needed counts this much less with each that needs less."""
_MOST_CHOSEN = 512
"""What is chosen ahead of a pass at most: a choice is best made late."""


class BlockOrder:
    """Free blocks of one block pool.

    Args:
        blocks: the free blocks, in the order of the queue that is replaced.
        tree: decides among hashed blocks where `demand_aware`.
        hash_block_tokens: tokens of one hashed block.
    """

    def __init__(self, blocks: Iterable[KVCacheBlock], tree: DemandAwareRadixTree, hash_block_tokens: int) -> None:
        self.tree = tree
        self.demand_aware = True
        self.evictions: Counter[str] = Counter()
        self._hash_block_tokens = hash_block_tokens
        # Ids and not blocks as keys: KVCacheBlock is unhashable.
        self._unhashed: OrderedDict[int, KVCacheBlock] = OrderedDict((block.block_id, block) for block in blocks)
        self._hashed: OrderedDict[int, KVCacheBlock] = OrderedDict()
        self._chosen: OrderedDict[int, tuple[KVCacheBlock, int]] = OrderedDict()
        """With their eviction classes. The tree no longer knows them; vLLM still finds them, until they are used."""
        self._given_up = 0
        self._expected = 0.0
        self.num_free_blocks = len(self._unhashed)
        """Kept, not counted when asked: vLLM asks for it for each running request of each pass."""

    # ---- vLLM's interface ------------------------------------------------------------------------------------

    def popleft(self) -> KVCacheBlock:
        """The next block to use.

        Raises:
            ValueError: none is free.
        """
        if not self.num_free_blocks:
            raise ValueError("No free blocks available")
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """The next `n` blocks to use; the caller knows that so many are free."""
        self.num_free_blocks -= n
        if n == 1 and self._chosen and not self._unhashed:
            # Running requests take their blocks one by one: most calls are this one.
            block, eviction_class = self._chosen.popitem(last=False)[1]
            self.evictions[CLASS_NAMES[eviction_class]] += 1
            self._given_up += 1
            return [block]
        unhashed = min(n, len(self._unhashed))
        out = [self._unhashed.popitem(last=False)[1] for _ in range(unhashed)]
        if unhashed < n:
            out.extend(self._give_up(n - unhashed))
            self._given_up += n - unhashed
        if unhashed:
            self.evictions[CLASS_NAMES[0]] += unhashed
        return out

    def remove(self, block: KVCacheBlock) -> None:
        """A free block is used again, because it was hit.

        Raises:
            RuntimeError: it is not free.
        """
        if self._hashed.pop(block.block_id, None) is not None:
            self.tree.reclaim(block.block_id)
        elif self._chosen.pop(block.block_id, None) is None and self._unhashed.pop(block.block_id, None) is None:
            raise RuntimeError(f"remove() called on an invalid block: {block}")
        self.num_free_blocks -= 1

    def append(self, block: KVCacheBlock) -> None:
        """A block is free from now on, to be used after all that are free already (among its like)."""
        self.append_n([block])

    def append_n(self, blocks: list[KVCacheBlock]) -> None:
        """The same for several; the first of them goes first."""
        size = self._hash_block_tokens
        self.num_free_blocks += len(blocks)
        hashed = []
        for block in blocks:
            block_id, block_hash, tokens = block.block_id, block.block_hash, block.block_hash_num_tokens
            if block_hash is None:
                self._unhashed[block_id] = block
                continue
            self._hashed[block_id] = block
            hashed.append((block_id, get_block_hash(block_hash), (tokens or size) // size - 1))
        self.tree.free_all(hashed)

    def prepend_n(self, blocks: list[KVCacheBlock]) -> None:
        """Blocks that can't be hit are free from now on, to be used before all others, the first of them first."""
        self.num_free_blocks += len(blocks)
        for block in reversed(blocks):
            self._unhashed[block.block_id] = block
            self._unhashed.move_to_end(block.block_id, last=False)

    def get_all_free_blocks(self) -> list[KVCacheBlock]:
        """All free blocks in the order in which they would be used now."""
        hashed = self._hashed
        order = self.tree.in_order() if self.demand_aware else list(hashed)
        chosen = (block for block, _ in self._chosen.values())
        return [*self._unhashed.values(), *chosen, *(hashed[block_id] for block_id in order)]

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """Free blocks in the order in which they would be used, from behind `cursor` or from the first."""
        blocks = iter(self.get_all_free_blocks())
        if cursor is not None:
            for block in blocks:
                if block is cursor:
                    break
        yield from blocks

    # ---- PRISM's ---------------------------------------------------------------------------------------------

    def choose_ahead(self) -> None:
        """Before a pass, while there is time: choose what it will likely need, about as much as the last ones."""
        self._expected = max(self._given_up, self._expected * _FADES)
        self._given_up = 0
        if not self.demand_aware:
            return
        count = min(round(self._expected), _MOST_CHOSEN) - len(self._chosen) - len(self._unhashed)
        if count > 0:
            taken = self.tree.take(min(count, len(self._hashed)))
            self._chosen.update((block_id, (self._hashed.pop(block_id), name)) for block_id, name in taken)

    def reset(self) -> None:
        """The prefix cache was emptied: no block is hashed any more, all keep their turn."""
        self._unhashed.update((block_id, block) for block_id, (block, _) in self._chosen.items())
        self._chosen.clear()
        for block_id in self.tree.reset() if self.demand_aware else self._lru_reset():
            self._unhashed[block_id] = self._hashed.pop(block_id)

    def _lru_reset(self) -> list[int]:
        order = list(self._hashed)
        self.tree.reset()
        return order

    def _give_up(self, count: int) -> list[KVCacheBlock]:
        chosen = [self._chosen.popitem(last=False)[1] for _ in range(min(count, len(self._chosen)))]
        out = [block for block, _ in chosen]
        self._count([eviction_class for _, eviction_class in chosen])
        left = count - len(chosen)
        if not left:
            return out
        if not self.demand_aware:
            return out + self._give_up_least_recent(left)
        taken = self.tree.take(left)
        self._count([eviction_class for _, eviction_class in taken])
        hashed = self._hashed
        return out + [hashed.pop(block_id) for block_id, _ in taken]

    def _count(self, classes: list[int]) -> None:
        for eviction_class in set(classes):
            self.evictions[CLASS_NAMES[eviction_class]] += classes.count(eviction_class)

    def _give_up_least_recent(self, count: int) -> list[KVCacheBlock]:
        out = []
        for _ in range(count):
            block_id, block = self._hashed.popitem(last=False)
            self.tree.drop(block_id)
            out.append(block)
        self.evictions["lru"] += count
        return out
