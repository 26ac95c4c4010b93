"""Radix: one-token slots, and a radix tree of what sequences share (RadixAttention, SGLang).

    prompt A = system + a         |######## system ########|#### a ####|.. answer of A ..|
    prompt B = system + b                                  |###### b ######|. answer of B .|
    prompt C = half of it + c     |### system ##|# c #|.. answer of C ..|
                                  '------- can be found by others ------'---- private -----'

A node of the tree is a piece of text and its slots; C, which diverges in the middle of the system prompt,
splits that node in two. Nodes are locked while a living sequence uses them or their descendants. Slots come
from a stack; when it is empty, the least recently used unlocked leaf is evicted, with all its slots. Any slot
serves any token: the waste per sequence is 0, internal and external.

`fill` moves computed slots of a sequence into the tree as far as its text can be shared, and frees those
whose text another sequence has entered meanwhile. `release` also leaves the private rest in the tree, as a
leaf that no lookup finds: it takes room from findable text until it is the least recently used, as in SGLang.
In the ledger such slots are free, not cached. `evict` frees the private rest immediately.

Texts are touched when a sequence is placed, enters text, or is released; a node used only in part counts as
used whole, as in SGLang. Left out: SGLang also touches the texts that waiting requests find, evicts as many
slots as a step needs even if it lacks fewer, and lets an evicted sequence find its prompt. If private text
follows text that no other request has asked for yet, the two are one node in SGLang.
"""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.arena import Layout, layout_of_slots
from kvsim.allocators.base import Allocator, Content, Holdings, InvariantError, Match, Region
from kvsim.allocators.radix_tree import Node, RadixMatch, RadixTree
from kvsim.allocators.records import Id
from kvsim.allocators.runs import cut
from kvsim.allocators.shares import rounds
from kvsim.allocators.text_tree import follow


class Holding:
    """The tree path to `node`, then the sequence's own slots. `shareable` tokens of `content` may enter."""

    __slots__ = ("content", "node", "private", "shareable")

    def __init__(self, node: Node, private: list[int], content: Content, shareable: int) -> None:
        self.node = node
        self.private = private
        self.content = content
        self.shareable = shareable

    def __repr__(self) -> str:
        return f"{self.node.end} tokens in nodes, {len(self.private)} of its own"


@mypyc_attr(allow_interpreted_subclasses=True)
class Radix(Allocator):
    """One-token slots, a radix tree of text that can be shared, eviction of the least recently used leaf."""

    family = "tokens"
    idea = "a radix tree of texts; unused leaves are evicted, oldest first"
    wastes = "nothing"
    used_by = "SGLang"
    source = "RadixAttention, arXiv 2312.07104; SGLang, radix_cache.py"

    pages: ClassVar[bool] = True
    keeps_prefixes: ClassVar[bool] = True

    def __init__(self, capacity_slots: int) -> None:
        super().__init__(capacity_slots)
        self.caches = True
        self.growth_unit = 1
        self.tree = RadixTree()
        self._free = list(range(capacity_slots - 1, -1, -1))  # the last one is allocated next
        self._held: Holdings[Holding] = Holdings()

    def slots(self, seq: int) -> list[int]:
        """The addresses of a sequence's tokens, in order."""
        held = self._held[seq]
        pieces, node = [held.private], held.node
        while node is not self.tree.root:
            pieces, node = [node.slots, *pieces], node.parent
        return [slot for piece in pieces for slot in piece]

    def regions(self) -> Iterator[Region]:
        return self.layout().regions()

    def layout(self) -> Layout:
        allocated = [(seq, self.slots(seq)) for seq in sorted(self._held)]
        return layout_of_slots(self.capacity_slots, allocated, self.tree.idle_slots())

    # -- placing ------------------------------------------------------------------------------

    def slots_needed(self, tokens: int, bound: int) -> int:
        return tokens

    def match(self, content: Content, own: int, most: int) -> RadixMatch:
        """As in the base; nothing is kept under the name `own`."""
        return RadixMatch(*self.tree.find(content, most), content, self.tree.accesses)

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        return self.admit_after(RadixMatch(self.tree.root, 0, 0, (), self.tree.accesses), seq, tokens, bound)

    def admit_after(self, match: Match, seq: int, tokens: int, bound: int) -> bool:
        """As in the base; InvariantError for a match that is out of date or longer than `tokens`."""
        assert isinstance(match, RadixMatch)
        if seq in self._held or tokens < 1:
            self._held.expect_new(seq, tokens)
        match.check(seq, tokens, self.tree.accesses)
        if not self.can_admit_after(match, tokens, bound):
            return False
        missing = tokens - match.tokens
        node = self.tree.touch(match.node, match.common)
        woken = self.tree.lock(node)
        self.used_slots += woken
        self.cached_slots -= woken
        self.shared_tokens += match.tokens - woken
        shareable = sum([length for _, _, length in match.content])
        self._held[seq] = Holding(node, self._take(missing), match.content, shareable)
        return True

    def fork(self, parent: int, child: int, tokens: int) -> bool:
        """Share all `tokens` of the parent; a new token takes its own slot, so nothing is ever copied.

        Tokens that the parent has not passed to `fill` never enter the tree.
        """
        self._held.expect_new(child, tokens)
        held = self._held[parent]
        shared = tokens - held.node.end
        if not 0 <= shared <= len(held.private):
            raise InvariantError(f"sequence {parent} cannot share {tokens} tokens: it holds {held}")
        self.tree.touch(held.node, len(held.node.slots))
        if shared:
            held.shareable = 0
            held.node = self.tree.add(held.node, (), held.private[:shared])
            held.node.locks = 1  # on behalf of the parent, which held the node above
            del held.private[:shared]
        held.node.locks += 1
        self._held[child] = Holding(held.node, [], (), 0)
        self.shared_tokens += tokens
        return True

    def release(self, seq: int) -> None:
        held = self._held[seq]
        node = self.tree.touch(held.node, len(held.node.slots))
        if held.private:
            self.tree.leave(node, held.private)
        self._leave(seq, held)

    def evict(self, seq: int) -> None:
        """Release without touching the path; nothing of the private rest is kept for its return."""
        held = self._held[seq]
        self._free += held.private
        self._leave(seq, held)

    # -- growing ------------------------------------------------------------------------------

    def capacity(self, seq: int) -> int:
        held = self._held[seq]
        return held.node.end + len(held.private)

    def grow(self, seq: int, tokens: int) -> bool:
        missing = tokens - self.capacity(seq)
        if missing > self.free_slots:
            return False
        if missing > 0:
            self._held[seq].private += self._take(missing)
        return True

    def growth_budget(self) -> int:
        return self.free_slots

    def grow_many(self, seqs: Sequence[int]) -> None:
        """As in the base; `evicted_by` names a growth once per cached slot that it evicted."""
        if len(seqs) > self.free_slots:
            raise InvariantError(f"{len(seqs)} growths were asked for, {self.free_slots} promised")
        known: dict[Id, Holding] = self._held
        each = len(seqs) if len(seqs) <= len(known) else rounds(seqs)
        who: Sequence[Id] = seqs if each == len(seqs) else seqs[:each]
        growing = [known[seq] for seq in who]
        self.evicted_by = []
        slots: list[Id] = self._take(len(seqs), self.evicted_by)
        if each == len(seqs):
            for held, slot in zip(growing, slots, strict=True):
                held.private.append(slot)
            return
        for at, held in enumerate(growing):
            held.private += slots[at::each]

    def fill(self, seq: int, tokens: int) -> None:
        held = self._held[seq]
        old, stop = held.node, min(tokens, held.shareable)
        start = old.end
        if stop <= start:
            return
        if tokens > start + len(held.private):
            raise InvariantError(f"sequence {seq} cannot have computed {tokens} tokens: it holds {held}")
        rest = cut(held.content, start, stop)[::-1]
        node = self.tree.touch(*follow(old, rest))
        doubles = node.end - start
        if rest:
            node = self.tree.add(node, rest[::-1], held.private[doubles : stop - start])
        self._free += held.private[:doubles]
        del held.private[: stop - start]
        held.node = node
        woken = self.tree.lock(node) - len(node.slots) if rest else self.tree.lock(node)
        self._unlock(old)
        self.used_slots += woken - doubles
        self.cached_slots -= woken
        self.shared_tokens += doubles - woken

    # -- pieces -------------------------------------------------------------------------------

    def _leave(self, seq: int, held: Holding) -> None:
        del self._held[seq]
        self.used_slots -= len(held.private)
        self.shared_tokens -= held.node.end - self._unlock(held.node)

    def _unlock(self, node: Node) -> int:
        """Remove a sequence that ends at the node; returns how many slots are then unused."""
        idle, private = self.tree.unlock(node)
        self.cached_slots += idle
        self.used_slots -= idle + private
        return idle + private

    def _take(self, count: int, evicted_by: list[int] | None = None) -> list[int]:
        """Allocate `count` slots, the same as if one by one."""
        free = self._free
        slots: list[int] = []
        while count - len(slots) > len(free):
            free.reverse()
            slots += free
            leaf = self.tree.evict()
            free = self._free = leaf.slots
            if leaf.runs:
                self.cached_slots -= len(free)
                if evicted_by is not None:
                    evicted_by += [len(slots)] * len(free)
        left = len(free) - count + len(slots)
        last = free[left:]
        last.reverse()
        del free[left:]
        self.used_slots += count
        return slots + last if slots else last
