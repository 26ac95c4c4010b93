"""MLC: paged memory whose forks copy the last page immediately, instead of on the first write.

    parent  [47, 12, 83]    page 83 |######..........|
    child   [47, 12, 90]    page 90 |######..........|   copied when it forks: 6 slots, one more page

Full pages are shared through reference counts and never written again; the page that is not full always
belongs to one sequence alone. So there is no copy-on-write: the cost of a fork is known when it is made.
Compared with `paged`, memory is the same once all have written, and so are the copies: n - 1 for n sequences
of one prompt. But they are made immediately, even for a candidate of a beam search that is dropped.

Waste per sequence: `-tokens % page`, less than one page, for every fork too. If no page is free for a copy,
the page is shared until a sequence writes, as in `paged` (MLC's engine makes room before). Left out: the
prefix cache of whole sequences that MLC recycles, and popping of tokens.
"""

from typing import Self

from kvsim.allocators.options import Options
from kvsim.allocators.paged import Paged
from kvsim.allocators.records import expect_new


class Mlc(Paged):
    """Pages with reference counts; a fork copies the page that is not full."""

    family = "blocks"
    idea = "as paged, but a fork copies the last page at once, not when written"
    wastes = "less than one page for every sequence, forks too"
    used_by = "MLC-LLM"
    source = "Apache TVM, src/runtime/vm/paged_kv_cache.cc"

    frees_behind_windows = keeps_prefixes = copies_on_write = False
    moves_on_release = True  # a fork copies between two steps: the later step pays for it

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Self:
        return cls(capacity_slots, options.block_size, options.order, options.host_slots)

    def fork(self, parent: int, child: int, tokens: int) -> bool:
        """Share the full pages of the parent, which holds `tokens`, and copy the one that is not full."""
        expect_new(self._tables, child, tokens)
        table, size = self._table(parent), self.block_size
        full, filled = divmod(tokens, size)
        if not filled or len(table) != full + 1 or self._claims.part_filled or not self._pool.free:
            return super().fork(parent, child, tokens)
        self._claims.share(parent, child, full)
        self._tables[child] = table[:full] + self._pool.allocate(1)
        self.copied_slots += filled
        self._count()
        return True

    def fork_over(self, seq: int, parent: int, child: int, tokens: int) -> bool:
        """As in `Allocator`: the copy is made whatever `seq` shares with the parent."""
        forked = self.fork(parent, child, tokens)
        self.release(seq)
        return forked
