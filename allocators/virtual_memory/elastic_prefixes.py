"""kvcached's prefix cache for vLLM: kept blocks of finished requests, bounded, evicted by page.

    request holds block (count > 0)  --->  count 0, has a text: evictable, least recently used first
                                     '-->  count 0, no text: back to its page immediately

*Shortage*: when a request needs more blocks than there are, evictable ones are evicted in pure LRU order, as
their slots are reused immediately. *Bound*: when more than `most_kept` are evictable, the surplus is evicted
by page: first pages that hold nothing else (fewest blocks first; of equals the one whose most recent block is
oldest), as an empty page can be unmapped and a half-empty one cannot; the rest in LRU order.

Several blocks may hold the same text; look-ups find the one entered first.

Source: `ElasticBlockPool` in kvcached/integration/vllm/patches.py of ovg-project/kvcached e8e6406.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence

from kvsim.allocators.virtual_memory.elastic_blocks import ElasticBlocks


class ElasticPrefixes:
    """Reference counts and texts of the blocks of an `ElasticBlocks`.

    Parameters
    ----------
    blocks : ElasticBlocks
        Source of blocks.
    most_kept : int
        Maximum evictable blocks; -1: no bound, 0: none are kept.
    caching : bool
        Whether texts are kept at all.

    Attributes
    ----------
    counts : dict of int
        Holders of each held block; without caching they are never decremented, as in the original.
    evictable : dict
        Blocks without a holder whose text can be found, least recently used first.
    known : dict of dict
        Blocks that hold a text, by its key, first entered first.
    """

    def __init__(self, blocks: ElasticBlocks, most_kept: int, caching: bool = True) -> None:
        self.blocks = blocks
        self.most_kept = most_kept
        self.caching = caching
        self.counts: dict[int, int] = {}
        self.evictable: OrderedDict[int, None] = OrderedDict()
        self.known: dict[Hashable, dict[int, None]] = {}
        self._keys: dict[int, Hashable] = {}

    @property
    def free(self) -> int:
        """Blocks that a request could get."""
        return self.blocks.available + len(self.evictable)

    def find(self, keys: Iterable[Hashable]) -> list[int]:
        """The blocks of the longest cached prefix of a text."""
        found: list[int] = []
        for key in keys:
            blocks = self.known.get(key)
            if not blocks:
                break
            found.append(next(iter(blocks)))
        return found

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to these blocks."""
        if self.caching:
            for block in blocks:
                self.counts[block] = self.counts.get(block, 0) + 1
                self.evictable.pop(block, None)

    def allocate(self, count: int) -> list[int] | None:
        """Allocate blocks for a request, evicting if necessary; None if there are too few."""
        if count > self.free:
            return None
        blocks: list[int] | None = None
        for _ in range(2):
            lacking = count - self.blocks.available
            if lacking > 0 and self.evictable:
                self._evict(list(self.evictable)[:lacking])
            blocks = self.blocks.allocate(count)
            if blocks is not None:
                break
        for block in blocks or ():
            self.counts[block] = 1
        return blocks

    def enter(self, blocks: Sequence[int], keys: Sequence[Hashable]) -> None:
        """Record the texts of these blocks."""
        if not self.caching:
            return
        for block, key in zip(blocks, keys, strict=True):
            before = self._keys.get(block)
            if before is not None and before != key:
                self._forget(block)
            self.known.setdefault(key, {})[block] = None
            self._keys[block] = key

    def give_back(self, blocks: Sequence[int]) -> None:
        """Release the blocks of a finished request, given in eviction order."""
        if not self.caching:
            self.blocks.give_back(blocks)
            return
        without_text = []
        for block in blocks:
            self.counts[block] -= 1
            if self.counts[block]:
                continue
            del self.counts[block]
            if block in self._keys:
                self.evictable[block] = None
            else:
                without_text.append(block)
        self.blocks.give_back(without_text)
        surplus = len(self.evictable) - self.most_kept
        if self.most_kept >= 0 and surplus > 0:
            whole_pages = self._whole_pages(surplus)
            chosen = set(whole_pages)
            others = [block for block in self.evictable if block not in chosen]
            self._evict([*whole_pages, *others][:surplus])

    def drop(self, blocks: Iterable[int]) -> None:
        """Forget the texts of these blocks, and free those without a holder."""
        if not self.caching:
            return
        freed = []
        for block in blocks:
            self._forget(block)
            if block in self.evictable:
                del self.evictable[block]
                freed.append(block)
        self.blocks.give_back(freed)

    def reset(self) -> None:
        """Forget all texts."""
        if self.caching:
            self.blocks.give_back(list(self.evictable))
            self.evictable.clear()
            self.known.clear()
            self._keys.clear()

    def _whole_pages(self, most: int) -> list[int]:
        """At most `most` evictable blocks, of pages that hold nothing else, cheapest page first."""
        rank = {block: at for at, block in enumerate(self.evictable)}
        by_page: dict[int, list[int]] = {}
        for block in rank:
            by_page.setdefault(self.blocks.page_of(block), []).append(block)
        pages = [
            (len(blocks), max(map(rank.__getitem__, blocks)), blocks)
            for page, blocks in by_page.items()
            if len(blocks) >= self.blocks.occupancy(page)
        ]
        victims: list[int] = []
        for count, _, blocks in sorted(pages):
            if len(victims) + count > most:
                break
            victims += blocks
        return victims

    def _evict(self, blocks: list[int]) -> None:
        for block in blocks:
            del self.evictable[block]
            self._forget(block)
        self.blocks.give_back(blocks)

    def _forget(self, block: int) -> None:
        """Make look-ups no longer find this block's text."""
        key = self._keys.pop(block, None)
        if key is not None:
            del self.known[key][block]
            if not self.known[key]:
                del self.known[key]
