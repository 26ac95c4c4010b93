"""TGI's radix trie: the prompts of finished requests in whole blocks, and the blocks that hold them.

    (root) --- A B C D        a node: a text, a multiple of the block, and its blocks
                  '--- E F    an unused leaf can be evicted from its end, by as many blocks as needed

Time counts lookups and insertions; they set the time of every node they pass. Of equal times, the node with
the lower number goes first; numbers of removed nodes are reused, the last one first. A request uses the last
node of its path, even if it found only the start of that node; the nodes above stay because they have
children.

Like `RadixTrie` of text-generation-inference, backends/v3/src/radix.rs (revision db931fcf), numbers of nodes
and times included. Blocks that sequences hold, and blocks that may be found again, are counted in addition.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import chain

from kvsim.allocators.base import InvariantError, Run
from kvsim.allocators.runs import cut, take_common
from kvsim.allocators.text_tree import Key, find, key_of, nodes_below, put_above


class Node:
    """A piece of text in whole blocks."""

    __slots__ = (
        *("blocks", "children", "end", "findable", "locks", "number"),
        *("parent", "runs", "time", "users", "version"),
    )

    def __init__(self, number: int, version: int, parent: "Node | None", time: int) -> None:
        self.number = number
        self.version = version  # 1, 3, 5, ...: rises by 2 each time the number is reused
        self.parent: Node = parent or self
        self.runs: Sequence[Run] = []
        self.end = 0  # tokens from the root to its last
        self.blocks: list[int] = []
        self.users = 0  # requests that end here, and children
        self.locks = 0  # requests that end here or below
        self.findable = 0  # blocks, from the first on, whose text may be asked for again
        self.time = time  # time of the last visit
        self.children: dict[Key, Node] = {}  # by the text of their first block


class BlockTree:
    """Texts in blocks, evicted block by block.

    Attributes
    ----------
    time : int
        Lookups and insertions so far.
    blocks : int
        Blocks in the tree.
    held : int
        Blocks on the path of a request.
    found : int
        Blocks that no request holds and whose text may be asked for again.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.time = self.blocks = self.held = self.found = 0
        self._count = 1
        self._vacant: list[tuple[int, int]] = []  # (number, version) of removed nodes
        self.root = Node(1, 1, None, 0)
        self.root.locks = 1
        self._leaves: list[tuple[int, int, Node]] = []  # (time, number, node) of evictable nodes, in order

    def nodes(self) -> Iterator[Node]:
        """All nodes except the root, each before its children."""
        return nodes_below(self.root)

    def leaves(self) -> list[Node]:
        """Evictable nodes, the next victim first."""
        return [node for _, _, node in self._leaves]

    def find(self, text: Sequence[Run], tokens: int) -> tuple[list[int], Node, int]:
        """The blocks of a text's prefix, the node to lock for them, and how many of them are in that node."""
        self.time += 1
        end, common, _ = find(self.root, text, tokens, self.block_size)
        path, node, last = list[Node](), end, common // self.block_size
        while node is not self.root:
            path.append(node)
            node = node.parent
        for node in reversed(path):
            self._visit(node)
        return [*chain.from_iterable(above.blocks for above in path[:0:-1]), *end.blocks[:last]], end, last

    # -- using --------------------------------------------------------------------------------

    def hold(self, node: Node, common: int) -> Node:
        """Lock a path that ends after `common` blocks of a node; returns the node that ends there.

        Unlike in TGI, the node is split there, so that the unheld rest can be evicted.
        """
        if common < len(node.blocks):
            node = self._split(node, common * self.block_size)
        self.lock(node)
        above = node
        while above is not self.root:
            above.locks += 1
            if above.locks == 1:
                self.held += len(above.blocks)
                self.found -= above.findable
            above = above.parent
        return node

    def let_go(self, node: Node) -> None:
        """Stop using a path that ends with a node."""
        self.unlock(node)
        while node is not self.root:
            node.locks -= 1
            if not node.locks:
                self.held -= len(node.blocks)
                self.found += node.findable
            node = node.parent

    def lock(self, node: Node) -> None:
        """Add a user to the node."""
        if node is self.root:
            return
        if not node.users:
            self._leave_leaves(node)
        node.users += 1

    def unlock(self, node: Node) -> None:
        """Remove a user, a request or a child, from the node."""
        if node is self.root:
            return
        if not node.users:
            raise InvariantError(f"node {node.number} of {len(node.blocks)} blocks is used by nobody")
        node.users -= 1
        if not node.users:
            insort(self._leaves, (node.time, node.number, node))

    # -- changing -----------------------------------------------------------------------------

    def insert(self, text: Sequence[Run], blocks: Sequence[int], findable: int | None = None) -> int:
        """Enter a text of whole blocks; returns how many of its blocks were there before.

        In a new node, blocks up to the text's `findable`-th may be asked for again; None: all.
        """
        self.time += 1
        node, known, size = self.root, 0, self.block_size
        rest, left = list(text), len(blocks) * size
        while True:
            child = node.children.get(key_of(rest, size))
            if child is None:
                node = self._add(node, rest, list(blocks[known:]))
                node.findable = len(node.blocks) if findable is None else max(0, findable - known)
                self.found += node.findable
                return known
            self._visit(child)
            common = self._common(child, rest)
            known += common // size
            if common == left:
                return known
            rest, left = cut(rest, common, left), left - common
            node = child if common == len(child.blocks) * size else self._split(child, common)

    def evict(self, count: int) -> list[int]:
        """Evict up to `count` blocks from the least recently used leaves, from the end of the last one."""
        evicted: list[int] = []
        while self._leaves and len(evicted) < count:
            _, _, node = self._leaves[0]
            wanted = count - len(evicted)
            if wanted < len(node.blocks):
                kept = len(node.blocks) - wanted
                evicted += node.blocks[kept:]
                del node.blocks[kept:]
                self.found -= max(0, node.findable - kept)
                node.findable = min(node.findable, kept)
                node.runs = cut(node.runs, 0, kept * self.block_size)
                node.end -= wanted * self.block_size
            else:
                del self._leaves[0]
                evicted += node.blocks
                self.found -= node.findable
                self._remove(node)
        self.blocks -= len(evicted)
        return evicted

    # -- pieces -------------------------------------------------------------------------------

    def _common(self, node: Node, text: list[Run]) -> int:
        """Tokens in the common prefix of a node and a text, in whole blocks."""
        common = take_common(node.runs, text[::-1])
        return common - common % self.block_size

    def _visit(self, node: Node) -> None:
        if not node.users:
            self._leave_leaves(node)
            insort(self._leaves, (self.time, node.number, node))
        node.time = self.time

    def _leave_leaves(self, node: Node) -> None:
        at = bisect_left(self._leaves, (node.time, node.number))
        del self._leaves[at]

    def _add(self, parent: Node, runs: list[Run], blocks: list[int]) -> Node:
        if self._vacant:
            number, version = self._vacant.pop()
        else:
            self._count += 1
            number, version = self._count, 1
        node = Node(number, version, parent, self.time)
        node.runs, node.blocks = runs, blocks
        node.end = parent.end + len(blocks) * self.block_size
        self.blocks += len(blocks)
        insort(self._leaves, (self.time, number, node))
        first = key_of(runs, self.block_size)
        if first not in parent.children:  # a child that replaces another is not a new user
            self.lock(parent)
        parent.children[first] = node
        return node

    def _split(self, node: Node, common: int) -> Node:
        """Insert a new node above one, for its first `common` tokens."""
        kept = common // self.block_size
        head = self._add(node.parent, cut(node.runs, 0, common), node.blocks[:kept])
        self.blocks -= kept
        head.locks, head.findable = node.locks, min(node.findable, kept)
        node.findable -= head.findable
        put_above(head, node, self.block_size)
        del node.blocks[:kept]
        node.parent = head
        self.lock(head)
        return head

    def _remove(self, node: Node) -> None:
        del node.parent.children[key_of(node.runs, self.block_size)]
        self._vacant.append((node.number, node.version + 2))
        self.unlock(node.parent)
