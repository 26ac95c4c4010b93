"""A tree of texts in blocks: one node per block. Blocks match as a whole, the last one up to a token.

    (root) --- block 4 --- block 9
                      '--- block 7

Each text is a child of the text before it. The owner tracks holders and the order of eviction.
"""

from collections.abc import Iterator

from kvsim.allocators.base import Content, Run
from kvsim.allocators.records import Found
from kvsim.allocators.runs import cut, take_common


class BlockNode:
    """The text of one block, which follows that of its parent."""

    __slots__ = ("block", "children", "parent", "text")

    def __init__(self, block: int, text: tuple[Run, ...], parent: "BlockNode | None") -> None:
        self.block = block
        self.text = text
        self.parent = parent
        self.children: dict[tuple[int, int], dict[tuple[Run, ...], BlockNode]] = {}
        """by their first token, then by their text"""


class TextMatch(Found):
    """The blocks found for a text, and a node whose text starts like the next block."""

    __slots__ = ("blocks", "node", "partial", "shareable", "size", "source")

    def __init__(self, content: Content, node: BlockNode, size: int, changes: int) -> None:
        super().__init__(0, 0, content, 0, changes)
        self.shareable = sum([length for _, _, length in content])
        self.blocks: list[int] = []
        self.node = node  # of the last block found
        self.partial = 0  # tokens of `source`
        self.source: BlockNode | None = None
        self.size = size

    def text(self, index: int) -> tuple[Run, ...]:
        """The text of a full block."""
        return tuple(cut(self.content, index * self.size, (index + 1) * self.size))


class BlockTexts:
    """Texts of blocks.

    Attributes
    ----------
    found : int
        Blocks without a holder whose text can be found; counted by the owner.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.root = BlockNode(-1, (), None)
        self.found = 0
        self._nodes: list[BlockNode | None] = [None] * blocks

    def can_be_found(self, block: int) -> bool:
        return self._nodes[block] is not None

    def holds(self, node: BlockNode) -> bool:
        return node is self.root or self._nodes[node.block] is node

    def is_leaf(self, block: int) -> bool:
        """Whether no text follows this block."""
        node = self._nodes[block]
        return node is None or not node.children

    def nothing(self, changes: int) -> TextMatch:
        """An empty match."""
        return TextMatch((), self.root, self.block_size, changes)

    def find(self, content: Content, own: int, most: int, changes: int) -> TextMatch:
        """Match the first `most` tokens of a text; `own` is unused here."""
        match, size = TextMatch(content, self.root, self.block_size, changes), self.block_size
        most = min(most, match.shareable)
        while True:
            start = len(match.blocks) * size
            text = cut(content, start, min(start + size, most))
            if not text:
                break
            near = match.node.children.get(text[0][:2], {})
            node = near.get(tuple(text)) if start + size <= most else None
            if node is None:
                for other in near.values():
                    common = take_common(other.text, text[::-1])
                    if common > match.partial:
                        match.partial, match.source = common, other
                break
            match.blocks.append(node.block)
            match.node = node
        match.tokens = len(match.blocks) * size + match.partial
        return match

    def enter(self, parent: BlockNode, text: tuple[Run, ...], block: int) -> BlockNode:
        """Add a block behind a node; returns the node of this text, which may have existed before."""
        near = parent.children.setdefault(text[0][:2], {})
        node = near.get(text)
        if node is None:
            node = near[text] = self._nodes[block] = BlockNode(block, text, parent)
            self.found += 1
        return node

    def remove(self, block: int) -> Iterator[int]:
        """Remove a block and all blocks that follow it; yields them."""
        node = self._nodes[block]
        if node is None or node.parent is None:
            return
        near = node.parent.children[node.text[0][:2]]
        del near[node.text]
        if not near:
            del node.parent.children[node.text[0][:2]]
        stack = [node]
        while stack:
            gone = stack.pop()
            self._nodes[gone.block] = None
            stack += [child for near in gone.children.values() for child in near.values()]
            gone.children.clear()
            gone.parent = None
            yield gone.block
