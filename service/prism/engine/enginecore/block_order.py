"""The order in which vLLM's free blocks are used up.

`BlockOrder` stands in the place of vLLM's `FreeKVCacheBlockQueue`: same methods, same meaning of each, another order.

    [ unhashed blocks ]  never hit anything: first, last freed first, as in stock vLLM
    [ hashed blocks   ]  by the retention: stock LRU (the order in which they were freed), or the tree's

It keeps both orders of the hashed blocks all the time, so that the policy can change between two passes.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

from vllm.v1.core.kv_cache_utils import KVCacheBlock, get_block_hash

from prism.core.tree import CLASS_NAMES, DemandAwareRadixTree


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
        unhashed = min(n, len(self._unhashed))
        out = [self._unhashed.popitem(last=False)[1] for _ in range(unhashed)]
        if unhashed < n:
            out.extend(self._give_up(n - unhashed))
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
        elif self._unhashed.pop(block.block_id, None) is None:
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
        return [*self._unhashed.values(), *(hashed[block_id] for block_id in order)]

    def iter_blocks_after(self, cursor: KVCacheBlock | None) -> Iterator[KVCacheBlock]:
        """Free blocks in the order in which they would be used, from behind `cursor` or from the first."""
        blocks = iter(self.get_all_free_blocks())
        if cursor is not None:
            for block in blocks:
                if block is cursor:
                    break
        yield from blocks

    # ---- PRISM's ---------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """The prefix cache was emptied: no block is hashed any more, all keep their turn."""
        for block_id in self.tree.reset() if self.demand_aware else self._lru_reset():
            self._unhashed[block_id] = self._hashed.pop(block_id)

    def _lru_reset(self) -> list[int]:
        order = list(self._hashed)
        self.tree.reset()
        return order

    def _give_up(self, count: int) -> list[KVCacheBlock]:
        if not self.demand_aware:
            return self._give_up_least_recent(count)
        taken = self.tree.take(count)
        classes = [eviction_class for _, eviction_class in taken]
        for eviction_class in set(classes):
            self.evictions[CLASS_NAMES[eviction_class]] += classes.count(eviction_class)
        hashed = self._hashed
        return [hashed.pop(block_id) for block_id, _ in taken]

    def _give_up_least_recent(self, count: int) -> list[KVCacheBlock]:
        out = []
        for _ in range(count):
            block_id, block = self._hashed.popitem(last=False)
            self.tree.drop(block_id)
            out.append(block)
        self.evictions["lru"] += count
        return out
