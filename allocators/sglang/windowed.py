"""SGLang's memory for models with sliding windows and a radix tree: two pools, and prefixes kept in both.

    row of A    [ tree: system | tree: a ][ its own: computed since | empty ]       full pages
                  .    .    .    s s s s    . . s s s s s s s                       windowed pages (SWA)
                                 a lock     freed behind the window

Pages come from both pools at once (pairs.py). The windowed ones of a sequence's own tokens go when they are
behind the window, not at once but when `interval` tokens can (SGLang: 128); as prefixes are kept, so much
stays that a whole window lies before the end of what may be entered. Those in the tree go when nobody's
window needs them and room is short (window_tree.py). A text that meets full pages without windowed ones
is computed again behind the last usable place, and its first part is entered up to there.

    waste of a sequence = groups.each * (-tokens % page_size), and SWA pages not freed yet
    expired             = windowed slots that a living sequence does without, or has from another one

What one pool cannot allocate does not help the other: external. Source: SGLang 0.5.23,
`mem_cache/unified_cache/components/swa.py`, `mem_cache/common.py`.
"""

from kvsim.allocators.base import Content, InvariantError, Match
from kvsim.allocators.runs import text_of
from kvsim.allocators.sglang.nodes import Node
from kvsim.allocators.sglang.rows import UNKNOWN, SglangMatch, WindowMatch, WindowRow
from kvsim.allocators.sglang.window_sizes import WindowSizes


class SglangWindowed(WindowSizes):
    """A full and a windowed pool under one radix tree."""

    # -- placing ------------------------------------------------------------------------------

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        nothing = self._match(self.tree.root, 0, 0, (), UNKNOWN + seq)
        return self.admit_after(nothing, seq, tokens, bound)

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        assert isinstance(match, WindowMatch)
        self._check_match(match, seq, tokens)
        if not self.can_admit_after(match, tokens, bound):
            return False
        if not match.held:
            match.node = self.window_tree.touch(match.node, match.common)
            match.start = self.window_tree.lock_window(match.node)
        row = WindowRow(match.content, match.own, match.node, match.node.path())
        row.start, row.branch = match.start, match.there
        self._rows[seq] = row
        self._entered += row.entered
        self._held += len(row.pages)
        self._grow(row, tokens, tokens + 1)
        return True

    # -- growing and leaving ------------------------------------------------------------------

    def capacity(self, seq: int) -> int:
        return self._row(seq).capacity

    def grow(self, seq: int, tokens: int) -> bool:
        row, size = self._row(seq), self.page_size
        if tokens <= row.capacity:
            return True
        due, held = self._due(row), len(row.pages) * size
        if tokens > due or tokens - held not in range(1, size + 1) or not self.pairs.take_one(row.pages):
            return self._grow(row, tokens, row.ready, row.capacity)
        row.capacity = min(held + size, due)  # a page more, as most often: nothing else changes
        self._held += 1
        self.used_slots += self.slots_per_token * size
        return True

    def _due(self, row: WindowRow) -> int:
        """Tokens with which a sequence must come back, to free what is behind its window then."""
        return max(self.groups.window + row.behind + self.interval, row.ready)

    def grow_chunk(self, seq: int, computed: int, tokens: int) -> bool:
        row = self._row(seq)
        if computed > row.capacity:
            raise InvariantError(f"sequence {seq} has room for {row.capacity} tokens, not {computed}")
        if tokens <= row.capacity:
            return True
        return self._grow(row, tokens, tokens + 1, 0 if self.caches else computed)

    def _grow(self, row: WindowRow, tokens: int, ready: int, stored: int = 0) -> bool:
        """Free what is behind the window of so many tokens, and make room for all."""
        if stored >= row.ready:
            self._slide(row, stored, self.interval)
        missing = self._whole(tokens) // self.page_size - len(row.pages)
        if missing * self.page_size > min(self.free_tokens, self.free_windowed):
            self._count()
            return False
        if missing > 0:
            self.make_room(missing * self.page_size)
            row.pages += self.pairs.take(missing)
            self._held += missing
        row.ready = ready
        row.capacity = max(tokens, min(len(row.pages) * self.page_size, self._due(row)))
        self._count()
        return True

    def slide(self, seq: int, stored: int) -> None:
        """A sequence with so many tokens decodes: free what is behind its window, if that is due."""
        row = self._row(seq)
        if stored >= row.ready and stored - self.groups.window >= row.behind + self.interval:
            self._slide(row, stored, self.interval)
            self._count()

    def _slide(self, row: WindowRow, stored: int, interval: int) -> None:
        size, window = self.page_size, self.groups.window
        if stored - window < row.behind + interval:
            return
        before = max(row.behind, row.entered)
        reach = stored - (self._whole(max(window, size)) if self.caches else window)
        row.behind = max(before, reach) // size * size
        self.pairs.drop_partners(row.pages[before // size : row.behind // size])

    def make_room(self, slots: int) -> bool:
        full, windowed = self.pool.available, self.pairs.windowed.available
        if slots > min(full, windowed):
            self.window_tree.make_room(slots - full, slots - windowed)
            self._count()
        return slots <= self.pairs.available

    def release(self, seq: int) -> None:
        row = self._row(seq)
        del self._rows[seq]
        mine, size = row.pages[row.entered // self.page_size :], self.page_size
        self.pairs.give(mine, (row.behind - row.entered) // size)
        self.window_tree.unlock_window(row.node, row.start)
        self._held -= len(row.pages)
        self._entered -= row.entered
        self._missing -= row.missing
        self._count()

    def retire(self, seq: int) -> int:
        row, size = self._row(seq), self.page_size
        if not row.missing:
            seen = [at for at in range(len(row.pages)) if self._sees(row, at)]
            row.missing = self.groups.windowed * size * (len(row.pages) - len(seen))
            self._missing += row.missing
            self._count()
        return self.slots_per_token * len(row.pages) * size - row.missing

    # -- keeping prefixes ---------------------------------------------------------------------

    def _match(self, node: Node, common: int, there: int, content: Content, own: int) -> WindowMatch:
        full, windowed = self.window_tree.idle(node, common)
        match = WindowMatch((node, common, full), content, own, self.tree.changes)
        match.idle_windowed, match.there = windowed, there
        match.woken_slots = self.groups.full * full + self.groups.windowed * windowed
        return match

    def match(self, content: Content, own: int, most: int) -> WindowMatch:
        node, common, there = self.window_tree.reach(text_of(content, own, most), most)
        return self._match(node, common, there, content, own)

    def look(self, content: Content, own: int, most: int) -> WindowMatch:
        node, there = self.window_tree.look(text_of(content, own, most), most)
        return self._match(node, node.tokens, there, content, own)

    def hold(self, match: SglangMatch) -> None:
        assert isinstance(match, WindowMatch)
        match.start = self.window_tree.lock_window(match.node)
        match.idle = match.idle_windowed = match.woken_slots = 0
        match.held = True
        self._count()

    def fill(self, seq: int, tokens: int, ends: bool = False) -> None:
        if not self.caches:
            return
        row, size = self._row(seq), self.page_size
        if tokens > len(row.pages) * size:
            raise InvariantError(f"sequence {seq} cannot have computed {tokens} tokens: it holds {row}")
        length = row.branch if row.entered < row.branch <= tokens else tokens
        if not ends:
            self._slide(row, length - 1, 1)
        whole, before = length - length % size, row.entered
        if whole >= max(before, 1):
            text, pages = text_of(row.content, row.own, whole), row.pages[: whole // size]
            node = self.window_tree.enter(text, pages, before, row.behind, row.longest)
            row.pages[before // size : whole // size] = node.path()[before // size :]
            self.window_tree.unlock_window(row.node, row.start)
            row.start = self.window_tree.lock_window(node)
            row.node, row.entered, row.longest = node, whole, max(whole, row.longest)
            self._entered += whole - before
            if whole >= row.branch > 0:
                row.branch = 0
                if not ends:
                    self._slide(row, tokens - 1, 1)
        self._count()

    def part(self, seq: int, tokens: int) -> None:
        """Prompts and answers lie in nodes of one window anyway."""
