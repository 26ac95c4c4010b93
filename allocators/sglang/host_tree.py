"""The tree of SGLang's HiCache: nodes evicted from the GPU stay in host memory, and can be loaded back.

    (root) --- gpu, host --- gpu, host --- gpu        the GPU has the path from the root down to some node,
                         '--- host --- host           the host what was written there; the rest is gone

    write_through             a node is copied when first found or created; with all nodes above it
    write_through_selective   ... the second time
    write_back                when the GPU needs its pages, and waits for the copy

A GPU leaf, without a child on the GPU, is evicted by the strategy; if the host has it too, it becomes a host
node, else it is gone. Host leaves are evicted by the same strategy when the host is full; with `write_back`,
first those that the GPU also has, the oldest copies first. A text that is entered again restores its nodes to
the GPU without a copy.

Users of a path hold locks, and so do copies and (`host_locks`) users of host data. This module has no clock:
copies are *queued*, and become *written* when the caller says so (sim/serving/hicache.py). Hits count only
with write-through, as in SGLang: with `write_back`, `lfu` and `slru` equal `lru`.

Source: SGLang 0.5.23, `mem_cache/unified_radix_cache.py`, `unified_cache/unified_tree_core.py`,
`components/full.py`.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import Final

from kvsim.allocators.base import InvariantError, Run
from kvsim.allocators.runs import cut, take_common
from kvsim.allocators.sglang.eviction import Strategy
from kvsim.allocators.sglang.leaves import Leaves
from kvsim.allocators.sglang.nodes import HostNode
from kvsim.allocators.sglang.tree import Evicted, SglangTree
from kvsim.allocators.text_tree import follow, key_of, nodes_below

HITS: Final = {"write_through": 1, "write_through_selective": 2, "write_back": 0}
"""Policy -> hits of a node before it is copied; 0: copied only on eviction."""

LEAST_PRIORITY: Final = 1 - (1 << 63)
"""Priority of the root, and of data read from storage before any text was entered."""


class GpuLeaves(Leaves[HostNode]):
    """Nodes on the GPU without children there; the host may have children of them."""

    def may_go(self, node: HostNode) -> bool:
        return len(node.pages) > 0 and not (node.locks or node.resident)


class HostLeaves:
    """Nodes without children that are only on the host."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self._heap: list[tuple[tuple[int, ...], int, HostNode]] = []
        self._keys: dict[HostNode, tuple[int, ...]] = {}

    def queue(self, node: HostNode) -> None:
        """Queue a node for eviction if it may be evicted."""
        if may_leave_host(node):
            key = self.strategy(node)
            if self._keys.get(node) != key:
                self._keys[node] = key
                heappush(self._heap, (key, node.serial, node))

    def next(self) -> HostNode | None:
        """The next leaf to evict; None if there is none."""
        while self._heap:
            key, _, leaf = heappop(self._heap)
            if self._keys.get(leaf) == key:
                del self._keys[leaf]
                if may_leave_host(leaf):
                    return leaf
        return None


def may_leave_host(node: HostNode) -> bool:
    """Whether a node is an unused host leaf."""
    return node.on_host and not (node.pages or node.children or node.locks or node.host_locks)


def pinned_tokens(node: HostNode) -> int:
    """Tokens of a GPU node that only copies use; else 0."""
    return node.tokens if node.pages and node.copies and node.copies == node.locks else 0


class BothLeaves(GpuLeaves):
    """The leaves of the GPU and those of the host."""

    def __init__(self, strategy: Strategy) -> None:
        super().__init__(strategy)
        self.host = HostLeaves(strategy)

    def queue(self, node: HostNode) -> None:
        super().queue(node)
        self.host.queue(node)


class HostTree(SglangTree[HostNode]):
    """Texts in whole pages, on the GPU and on a host with room for `capacity` tokens.

    Attributes
    ----------
    pinned : int
        Tokens on the GPU that only copies hold locks on.
    capacity, room : int
        Tokens that the host has memory for, and how many of them are free.
    queued : list of HostNode
        Nodes whose copies to the host are to start, in order; each is locked until it is `written`.
    waited : list of (HostNode, int)
        Nodes, with their tokens, for whose copies evictions have waited since the list was last taken.
    refused, forgotten : int
        Nodes for which the host had no room; tokens that it evicted.
    """

    node_class = HostNode

    def __init__(self, page_size: int, strategy: Strategy, capacity: int, policy: str) -> None:
        super().__init__(page_size, strategy, unified=True)
        self.leaves: BothLeaves = BothLeaves(strategy)
        self.pinned = 0
        self.capacity = self.room = capacity - capacity % page_size
        self.threshold, self.writes_back = HITS[policy], policy == "write_back"
        self.queued: list[HostNode] = []
        self.waited: list[tuple[HostNode, int]] = []
        self.refused = self.forgotten = 0
        self._doubles: dict[HostNode, None] = {}  # nodes that may be in both memories, the oldest first
        self.root.on_host, self.root.priority = True, LEAST_PRIORITY

    # -- looking up ---------------------------------------------------------------------------

    def find(self, text: Sequence[Run], most: int) -> tuple[HostNode, int, int]:
        """As in the base, restricted to the GPU."""
        node, common, _ = super().find(text, most)
        if node is not self.root and not node.pages:
            node = self.resident(node)
            common = node.tokens
        idle, at = 0, node
        while not at.locks:
            idle += common if at is node else at.tokens
            at = at.parent
        return node, common, idle

    def reach(self, text: Sequence[Run], most: int) -> int:
        """How many of a text's first `most` tokens are in either memory; changes nothing."""
        node, common = follow(self.root, cut(text, 0, most - most % self.page_size)[::-1], self.page_size)
        return node.parent.end + common

    def unused(self) -> Iterator[HostNode]:
        return (node for node in self.nodes() if node.locks == node.copies)

    def resident(self, node: HostNode) -> HostNode:
        """The last node on a path that is on the GPU."""
        while not node.pages and node is not self.root:
            node = node.parent
        return node

    # -- entering -----------------------------------------------------------------------------

    def insert(
        self, text: Sequence[Run], pages: Sequence[int], priority: int = 0, entered: int = 0
    ) -> tuple[int, HostNode]:
        """As in the base; nodes that only the host has take the new pages, and do not count as present."""
        size, node, found = self.page_size, self.root, 0
        for node in self._along(text, priority):
            if node.pages:
                found = node.end
            else:
                self._take_pages(node, pages[(node.end - node.tokens) // size : node.end // size])
                self._note_double(node)
            self._hit(node, entered)
        if node.end < len(pages) * size:
            node = self._append(node, text, pages, priority)
            node.parent.resident += 1
            self._hit(node, entered)
        return found, node

    def _hit(self, node: HostNode, entered: int) -> None:
        """Record a hit of a node, or an insertion; each sequence counts once."""
        if not self.writes_back and node.end > entered:
            node.hits += 1
            if not node.on_host and node.hits >= self.threshold:
                self._write_through(node)
        self.leaves.queue(node)

    def _take_pages(self, node: HostNode, pages: Sequence[int]) -> None:
        """Put a node back on the GPU."""
        node.pages = list(pages)
        self.pinned += pinned_tokens(node)
        node.parent.resident += 1
        if node.locks:
            self.protected += node.tokens
        else:
            self.evictable += node.tokens
        self.leaves.queue(node)

    def _split(self, node: HostNode, tokens: int) -> HostNode:
        head = super()._split(node, tokens)
        head.on_host, head.copied, head.host_locks = node.on_host, node.copied, node.host_locks
        head.copies = node.copies
        head.resident = int(len(node.pages) > 0)
        self._note_double(head)
        return head

    # -- locks --------------------------------------------------------------------------------

    def lock(self, node: HostNode, copies: int = 0) -> None:
        """As in the base; `copies`: 1 if the user is a copy."""
        self._count_pinned(node, -1)
        super().lock(node)
        self._count_pinned(node, 1, copies)

    def unlock(self, node: HostNode, copies: int = 0) -> None:
        """Remove a user."""
        self._count_pinned(node, -1)
        super().unlock(node)
        self._count_pinned(node, 1, -copies)

    def _count_pinned(self, node: HostNode, sign: int, copies: int = 0) -> None:
        """Add to the copies of the nodes on a path; update the count of pinned tokens."""
        while node is not self.root:
            node.copies += copies
            self.pinned += sign * pinned_tokens(node)
            node = node.parent

    # -- to the host --------------------------------------------------------------------------

    def _write_through(self, node: HostNode) -> None:
        """Queue copies of a node and of all nodes above it that the host lacks, while the host has room."""
        lacking: list[HostNode] = []
        while not node.on_host:
            lacking.append(node)
            node = node.parent
        for node in reversed(lacking):
            if not self._make_room(node.tokens):
                self.refused += 1
                return
            self._give_host(node)
            node.copied = node.serial
            self.lock(node, 1)
            self.queued.append(node)

    def _give_host(self, node: HostNode) -> None:
        node.on_host = True
        self.room -= node.tokens

    def written(self, node: HostNode) -> list[HostNode]:
        """Record that a queued copy is complete; returns the pieces its node was split into, in order."""
        copy, pieces, at = node.serial, [node], node.parent
        while at.copied == copy:
            pieces.append(at)
            at = at.parent
        pieces.reverse()
        for piece in pieces:
            piece.copied = 0
        self.unlock(node, 1)
        return pieces

    # -- from the host ------------------------------------------------------------------------

    def lacking(self, node: HostNode) -> list[HostNode]:
        """The nodes of a path that only the host has, from first to last."""
        found: list[HostNode] = []
        while not node.pages and node is not self.root:
            found.append(node)
            node = node.parent
        return found[::-1]

    def load(self, nodes: Sequence[HostNode], pages: Sequence[int]) -> None:
        """Put nodes back on the GPU in these pages, and lock the path to the last of them."""
        self.changes += 1
        size, at = self.page_size, 0
        for node in nodes:
            count = node.tokens // size
            self._take_pages(node, pages[at : at + count])
            if self.writes_back:
                node.copied = nodes[-1].serial
            at += count

    def loaded(self, node: HostNode) -> None:
        """Record that the load ending with this node has finished."""
        load, at = node.serial, node
        self.unlock(node, 1)
        while at.copied == load:
            at.copied = 0
            self._note_double(at)
            at = at.parent

    # -- from below the host ------------------------------------------------------------------

    def hold_on_host(self, node: HostNode) -> int:
        """Lock the host's copy of a node; returns where its text begins, for `let_go`."""
        if node is not self.root and (node.on_host or self.writes_back):
            node.host_locks += 1
        return node.end - node.tokens

    def let_go(self, node: HostNode, start: int) -> None:
        """Undo `hold_on_host`, for all pieces of the node from `start` on."""
        while node is not self.root and (node.on_host or self.writes_back):
            node.host_locks -= 1
            self.leaves.queue(node)
            if node.end - node.tokens == start:
                return
            node = node.parent

    def insert_below(self, node: HostNode, text: Sequence[Run], tokens: int) -> int:
        """Add `tokens` tokens of a text behind a node to the host, where room for them was reserved.

        Returns how many were already there: their room is free again. Returns all of them if the host lacks
        the node, as nothing may follow it.
        """
        self.changes += 1
        end, found, size, kept = node.end + tokens, 0, self.page_size, node.end
        node.last = self._tick()
        while node.end < end:
            rest = cut(text, node.end, end)
            child = node.children.get(key_of(rest, size))
            if child is None:
                break
            child.last = self._tick()
            common = take_common(child.runs, rest[::-1])
            common -= common % size
            node = self._split(child, common) if common < child.tokens else child
            if self.writes_back or node.on_host:
                found += node.tokens
            else:
                node.on_host = True
                self._note_double(node)
            kept = node.end
            self.leaves.queue(node)
        if kept < end and (node is self.root or node.on_host or self.writes_back):
            leaf = self._new(node, cut(text, kept, end), [])
            leaf.priority, leaf.on_host = node.priority, True
            node.children[key_of(leaf.runs, size)] = leaf
            leaf.raise_history()
            self.leaves.queue(leaf)
            kept = end
        self.room += found + end - kept
        return found + end - kept

    # -- evicting -----------------------------------------------------------------------------

    def evict(self, tokens: int) -> Evicted:
        """Evict GPU leaves until at least `tokens` tokens are gone, or no evictable leaf is left."""
        gone, pages, kept = 0, [], []
        while gone < tokens and (leaf := self.leaves.next()) is not None:
            freed = leaf.pages
            if leaf.on_host or self._write_back(leaf):
                self._demote(leaf)
            elif not leaf.children or self._drop_below(leaf):
                self._remove(leaf)
            else:
                kept.append(leaf)
                continue
            gone += leaf.tokens
            pages.append(freed)
        for leaf in kept:
            self.leaves.queue(leaf)
        return Evicted(pages, gone)

    def _write_back(self, leaf: HostNode) -> bool:
        """Copy a leaf before its eviction, which waits; False: no write-back, or no room on the host."""
        if not self.writes_back:
            return False
        if not self._make_room(leaf.tokens):
            self.refused += 1
            return False
        self._give_host(leaf)
        self._note_double(leaf)
        self.waited.append((leaf, leaf.tokens))
        return True

    def _demote(self, leaf: HostNode) -> None:
        """Remove a leaf from the GPU; the host keeps it."""
        self.changes += 1
        self._leave_gpu(leaf)
        leaf.pages = []
        self.leaves.queue(leaf)

    def _remove(self, leaf: HostNode) -> None:
        if leaf.children:
            raise InvariantError(f"the host has what follows a node of {leaf.tokens} tokens, but not itself")
        self._leave_gpu(leaf)
        leaf.pages = []
        self._forget(leaf)

    def _leave_gpu(self, leaf: HostNode) -> None:
        self.evictable -= leaf.tokens
        leaf.parent.resident -= 1
        self.leaves.queue(leaf.parent)

    def _forget(self, leaf: HostNode) -> None:
        """Remove a leaf that neither memory has."""
        self.changes += 1
        del leaf.parent.children[key_of(leaf.runs, self.page_size)]
        self._doubles.pop(leaf, None)
        self.leaves.queue(leaf.parent)

    def _drop_below(self, leaf: HostNode) -> bool:
        """Drop the host's nodes behind a leaf that finds no room there; False if they are in use."""
        below = list(nodes_below(leaf))
        if leaf.host_locks or any(node.locks or node.host_locks for node in below):
            return False
        for node in reversed(below):
            self._leave_host(node)
            self._forget(node)
        return True

    def _leave_host(self, node: HostNode) -> None:
        node.on_host = False
        self.room += node.tokens
        self.forgotten += node.tokens

    def _make_room(self, tokens: int) -> bool:
        """Evict from the host until it has room for `tokens`; False if impossible."""
        missing = tokens - self.room
        return missing <= 0 or self.evict_host(missing) >= missing

    def evict_host(self, tokens: int) -> int:
        """Evict from the host until `tokens` are gone or nothing more can be evicted; returns how many."""
        gone = self._drop_doubles(tokens) if self.writes_back else 0
        while gone < tokens and (leaf := self.leaves.host.next()) is not None:
            self._leave_host(leaf)
            self._forget(leaf)
            gone += leaf.tokens
        return gone

    # -- in both memories ---------------------------------------------------------------------

    def _note_double(self, node: HostNode) -> None:
        """Record whether a node is in both memories; the oldest such copy is dropped first."""
        if not self.writes_back:
            return
        if node.pages and node.on_host and not node.copied:
            self._doubles.setdefault(node)
        else:
            self._doubles.pop(node, None)

    def _drop_doubles(self, tokens: int) -> int:
        """Drop host copies of GPU nodes, first of nodes that stay on the GPU; returns the tokens."""
        gone, swept = 0, []
        for spares in (True, False):
            for node in self._doubles:
                if gone >= tokens:
                    break
                if not (node.pages and node.on_host):
                    swept.append(node)
                elif not (node.copied or node.host_locks or (spares and self._is_gpu_leaf(node))):
                    self._leave_host(node)
                    gone += node.tokens
                    swept.append(node)
        for node in swept:
            self._doubles.pop(node, None)
        return gone

    def _is_gpu_leaf(self, node: HostNode) -> bool:
        return not (node.locks or node.resident)
