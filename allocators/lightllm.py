"""LightLLM: one-token slots from a stack, and a radix tree of the texts of finished requests.

    running     A |## found ##|======= its own slots =======|     from the stack: last in, first out
    finished    tree: |## found ##|##### all that A held #####|   until it is the least recently used leaf

A prompt is looked up when it is placed, and its path is locked. What a running sequence computes is private:
others find it only after it has ended or was paused. Then all of it enters the tree, and slots whose text is
already there are freed. When the stack is too short, whole leaves are evicted, the least recently used first.
A paused sequence finds all that is left of itself.

Any slot serves any token: the waste per sequence is 0, internal and external. In the ledger, text that no
request will ask for again (the private answer of a finished request) is free, not cached, though it stays in
the tree and takes room from what could be hit, as in LightLLM. The tree is allocators/lightllm_tree.py; it
and the pool are equal to LightLLM's own (revision fc72ffab) in every recorded step.
"""

from collections.abc import Iterator, Sequence

from kvsim.allocators.arena import Layout, layout_of_slots
from kvsim.allocators.base import Allocator, Content, Holdings, InvariantError, Match, Region
from kvsim.allocators.lightllm_tree import Node, TokenTree
from kvsim.allocators.records import Found
from kvsim.allocators.runs import text_of
from kvsim.allocators.shares import shares


class TokenPool:
    """Free one-token slots, last in, first out.

    Attributes
    ----------
    slots : list of int
        All slot numbers; those from `mark` on are free, in allocation order.
    mark : int
        The stack pointer: how many slots are allocated.
    """

    def __init__(self, size: int) -> None:
        self.slots = list(range(size))
        self.mark = 0

    @property
    def free(self) -> int:
        """Slots that can be allocated."""
        return len(self.slots) - self.mark

    def alloc(self, count: int) -> list[int] | None:
        """Allocate the next `count` slots; None if there are fewer."""
        start = self.mark
        if count > len(self.slots) - start:
            return None
        self.mark = start + count
        return self.slots[start : self.mark]

    def give_back(self, slots: Sequence[int]) -> None:
        """Free these slots, each of which is allocated once."""
        end = self.mark
        self.mark = end - len(slots)
        self.slots[self.mark : end] = slots


NAMELESS = 1 << 40
"""First name for sequences placed without one, which find nothing when they return."""


class Holding:
    """A sequence: the tree path to `node`, then its own slots; the first `filled` tokens are computed."""

    __slots__ = ("content", "filled", "node", "own", "slots")

    def __init__(self, node: Node, slots: list[int], content: Content, own: int) -> None:
        self.node = node
        self.slots = slots
        self.content = content
        self.own = own
        self.filled = node.end

    def __repr__(self) -> str:
        return f"{self.node.end} tokens in the tree, {len(self.slots)} of its own"


class LightLLM(Allocator):
    """A stack of one-token slots, a radix tree of ended requests, eviction of whole leaves."""

    family = "tokens"
    idea = "a stack of slots; a radix tree keeps what finished requests held"
    wastes = "nothing"
    used_by = "LightLLM"
    source = "LightLLM, mem_manager.py and radix_cache.py; ASPLOS '25"

    growth_unit = 1
    pages = True
    keeps_prefixes = True

    def __init__(self, capacity_slots: int) -> None:
        super().__init__(capacity_slots)
        self.caches = True
        self.pool = TokenPool(capacity_slots)
        self.tree = TokenTree()
        self._held: Holdings[Holding] = Holdings()
        self._changes = 0  # of the tree

    def slots(self, seq: int) -> list[int]:
        """The addresses of a sequence's tokens, in order."""
        held = self._held[seq]
        return _path(held.node) + held.slots

    def regions(self) -> Iterator[Region]:
        return self.layout().regions()

    def layout(self) -> Layout:
        allocated = ((seq, self.slots(seq)) for seq in sorted(self._held))
        unlocked = (node for node in self.tree.nodes() if not node.locks)
        found = {slot for node in unlocked for slot in node.slots[: node.findable]}
        return layout_of_slots(self.capacity_slots, allocated, found)

    # -- placing ------------------------------------------------------------------------------

    def slots_needed(self, tokens: int, bound: int) -> int:
        return tokens

    def match(self, content: Content, own: int, most: int) -> Found:
        """As in the base; under the name `own` a paused sequence finds all that it held."""
        tokens, unlocked = self.tree.find(text_of(content, own, most))
        return Found(tokens, unlocked, content, own, self._changes)

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        return self.admit_after(Found(0, 0, (), NAMELESS + seq, self._changes), seq, tokens, bound)

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        """As in the base; InvariantError for a match that is out of date or longer than `tokens`."""
        assert isinstance(match, Found)
        if seq in self._held or tokens < 1:
            self._held.expect_new(seq, tokens)
        match.check(seq, tokens, self._changes)
        if not self.can_admit_after(match, tokens, bound):
            return False
        self._changes += 1
        node = self.tree.match(text_of(match.content, match.own, match.tokens))
        self.shared_tokens += match.tokens - match.woken_slots
        self._held[seq] = Holding(node, self._take(tokens - match.tokens), match.content, match.own)
        self._count()
        return True

    # -- growing ------------------------------------------------------------------------------

    def capacity(self, seq: int) -> int:
        held = self._held[seq]
        return held.node.end + len(held.slots)

    def grow(self, seq: int, tokens: int) -> bool:
        missing = tokens - self.capacity(seq)
        if missing > self.free_slots:
            return False
        if missing > 0:
            self._held[seq].slots += self._take(missing)
            self._count()
        return True

    def growth_budget(self) -> int:
        return self.free_slots

    def grow_many(self, seqs: Sequence[int]) -> None:
        """As in the base; an ascending run of sequences is one step, which takes all its slots at once."""
        if len(seqs) > self.free_slots:
            raise InvariantError(f"{len(seqs)} growths were asked for, {self.free_slots} promised")
        self.evicted_by = []
        start, end = 0, len(seqs)
        while start < end:
            stop = min(end, start + self.pool.free)  # as many whole steps as the stack has slots for
            while start < stop < end and seqs[stop] > seqs[stop - 1]:
                stop -= 1
            if stop <= start:  # or one step, which must evict leaves
                stop = start + 1
                while stop < end and seqs[stop] > seqs[stop - 1]:
                    stop += 1
            found = self.tree.found
            for seq, share in shares(seqs[start:stop], self._take(stop - start)):
                self._held[seq].slots += share
            self.evicted_by += [start] * (found - self.tree.found)
            start = stop
        self._count()

    def fill(self, seq: int, tokens: int) -> None:
        """Record how much is computed; only computed text enters the tree when the sequence ends."""
        held = self._held[seq]
        if tokens > self.capacity(seq):
            raise InvariantError(f"sequence {seq} cannot have computed {tokens} tokens: it holds {held}")
        held.filled = max(held.filled, tokens)

    # -- leaving ------------------------------------------------------------------------------

    def release(self, seq: int) -> None:
        """Enter all computed text into the tree; text that others never ask for does not count as cached."""
        self._enter(seq, comes_back=False)

    def evict(self, seq: int) -> None:
        """Enter all computed text into the tree; the sequence may find it when it returns."""
        self._enter(seq, comes_back=True)

    def _enter(self, seq: int, comes_back: bool) -> None:
        held = self._held[seq]
        del self._held[seq]
        self._changes += 1
        before = held.node.end
        slots = _path(held.node) + held.slots
        known, node = self.tree.insert(text_of(held.content, held.own, held.filled), slots[: held.filled])
        known = max(known, before)
        self.pool.give_back(slots[before:known] + slots[max(held.filled, known) :])
        locked = self.tree.locked
        self.tree.unlock(held.node)
        self.shared_tokens -= before - (locked - self.tree.locked)
        shareable = sum([length for _, _, length in held.content])
        if held.filled > shareable and (not comes_back or held.own >= NAMELESS):
            self.tree.hide(node, shareable)
        self._count()

    # -- pieces -------------------------------------------------------------------------------

    def _take(self, missing: int) -> list[int]:
        """Take `missing` slots, evicting whole leaves for those that the stack lacks."""
        if missing > self.pool.free:
            self._changes += 1
            self.pool.give_back(self.tree.evict(missing - self.pool.free))
        slots = self.pool.alloc(missing)
        if slots is None:
            raise InvariantError(f"{missing} slots were promised, {self.pool.free} are there")
        return slots

    def _count(self) -> None:
        self.used_slots = self.pool.mark - self.tree.tokens + self.tree.locked
        self.cached_slots = self.tree.found


def _path(node: Node) -> list[int]:
    """The slots of the text that ends with a node."""
    pieces, above = [], node
    while above.parent is not above:
        pieces.append(above.slots)
        above = above.parent
    return [slot for piece in reversed(pieces) for slot in piece]
