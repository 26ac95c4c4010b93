"""State of a SGLang sequence, and the match before it: a row of pages, a path down the tree.

    row      [ the tree's pages: the first `entered` tokens | its own ]
    match    root --- node --- node: `common` tokens of the last; `idle` tokens of the path are unlocked

With windows, a row also records which of its tokens have lost their windowed pages, and a match how many of
its idle tokens still have theirs.
"""

from kvsim.allocators.base import Content
from kvsim.allocators.records import Found
from kvsim.allocators.sglang.nodes import Node, WindowNode

UNKNOWN = 1 << 40
"""A sequence with unknown text is named by this plus its id."""


class Row:
    """Pages of a sequence; those of the first `entered` tokens belong to the tree."""

    __slots__ = ("content", "entered", "longest", "node", "own", "pages", "shareable")

    def __init__(self, content: Content, own: int, node: Node, pages: list[int]) -> None:
        self.content = content
        self.shareable = sum([length for _, _, length in content])
        self.own = own
        self.node = node
        self.pages = pages
        self.entered = node.end
        self.longest = 0  # tokens that the sequence itself entered

    def __repr__(self) -> str:
        return f"{len(self.pages)} pages, {self.entered} tokens in the tree"


class SglangMatch(Found):
    """A path down the tree to `common` tokens of `node`, valid at `changes` changes.

    The host may have more of the text, up to the end of the node `below`.
    """

    __slots__ = ("below", "common", "held", "idle", "node")

    def __init__(self, found: tuple[Node, int, int], content: Content, own: int, changes: int) -> None:
        self.node, self.common, self.idle = found
        super().__init__(self.node.parent.end + self.common, self.idle, content, own, changes)
        self.held = False
        self.below = self.node


class WindowRow(Row):
    """Pages of a sequence; after the first `behind` tokens its own pages have windowed partners."""

    __slots__ = ("behind", "branch", "capacity", "missing", "ready", "start")
    node: WindowNode

    def __init__(self, content: Content, own: int, node: WindowNode, pages: list[int]) -> None:
        super().__init__(content, own, node, pages)
        self.behind = self.capacity = 0
        self.branch = 0  # at first, enter only this much: full pages were already there up to here
        self.ready = 0  # below this token count nothing is freed behind the window
        self.start = 0  # start of the windowed pages that it has locked
        self.missing = 0  # windowed slots that a finished sequence lacks


class WindowMatch(SglangMatch):
    """A usable prefix of a text; full pages are there up to `there`."""

    __slots__ = ("idle_windowed", "start", "there")
    node: WindowNode

    def __init__(self, found: tuple[WindowNode, int, int], content: Content, own: int, changes: int) -> None:
        super().__init__(found, content, own, changes)
        self.idle_windowed = self.there = self.start = 0
