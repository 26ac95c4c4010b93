"""A node of SGLang's radix trees: a piece of text, its pages, and its data for eviction.

    root <-- parent <-- node [ runs: (stream, first, length), ... | pages: 7 8 3 ]
                          '--- children, by their first page of text

Source: SGLang 0.5.23, `mem_cache/radix_cache.py` (TreeNode), `unified_cache/unified_tree_core.py`.
"""

from collections.abc import Sequence
from typing import Self

from kvsim.allocators.base import Run
from kvsim.allocators.text_tree import Key


class Node:
    """A piece of text behind its parent's, and its pages. The root is its own parent.

    Attributes
    ----------
    tokens, end : int
        Its tokens, and the tokens on the path from the root through it.
    locks : int
        Sequences that use it or its descendants.
    hits, last, created, priority : int
        Number of hits; times of last use and creation on the tree's clock; the highest priority of its
        texts.
    history : int
        Most tokens that a path through it ever had.
    queued : tuple or None
        The key under which it is queued for eviction.
    """

    __slots__ = (
        *("children", "created", "end", "history", "hits", "last", "locks", "pages", "parent"),
        *("priority", "queued", "runs", "serial", "tokens"),
    )

    def __init__(self, serial: int, parent: Self | None, runs: Sequence[Run], pages: list[int]) -> None:
        self.serial = serial
        self.parent: Self = parent or self
        self.children: dict[Key, Self] = {}
        self.runs = runs
        self.pages = pages
        self.tokens = self.end = self.history = 0
        self.locks = self.hits = self.priority = self.last = self.created = 0
        self.queued: tuple[int, ...] | None = None

    def path(self) -> list[int]:
        """The pages from the root to the node's end."""
        pieces, node = [self.pages], self
        while node.parent is not node:
            node = node.parent
            pieces.append(node.pages)
        return [page for piece in reversed(pieces) for page in piece]

    def raise_history(self) -> None:
        """Record a path that ends here in the history of this node and of those above."""
        node, end = self, max(self.history, self.end)
        self.history = end
        while node.parent is not node and node.parent.history < end:
            node = node.parent
            node.history = end


class WindowNode(Node):
    """A node whose pages may have windowed ones beside them (window_tree.py).

    Attributes
    ----------
    windowed, window_locks, recent : bool, int, int
        Whether it has windowed pages, their users, and when they were last used.
    """

    __slots__ = ("recent", "window_locks", "windowed")

    def __init__(self, serial: int, parent: Self | None, runs: Sequence[Run], pages: list[int]) -> None:
        super().__init__(serial, parent, runs, pages)
        self.windowed = False
        self.window_locks = self.recent = 0


class HostNode(Node):
    """A node that the host may have too, or alone (host_tree.py).

    Attributes
    ----------
    copies, host_locks : int
        Locks held by copies; users of the host's copy.
    on_host, resident, copied : bool, int, int
        Whether the host has it; children on the GPU; the copy in progress.
    """

    __slots__ = ("copied", "copies", "host_locks", "on_host", "resident")

    def __init__(self, serial: int, parent: Self | None, runs: Sequence[Run], pages: list[int]) -> None:
        super().__init__(serial, parent, runs, pages)
        self.on_host = False
        self.copies = self.resident = self.copied = self.host_locks = 0
