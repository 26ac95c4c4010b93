"""Code shared by all radix trees: follows a text from node to node, as far as the tree has it.

    (root) --- system --- a        a node is a piece of text behind its parent's; the root is its own parent
                     '--- b        children are keyed by the first token of their text, or by the first page

Each tree has its own nodes, with the memory that holds the text and the data that its eviction needs:
RadixAttention's paper (radix_tree.py), SGLang (sglang/tree.py), LightLLM and TGI.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, Self, TypeVar

from kvsim.allocators.records import Run
from kvsim.allocators.runs import cut, take_common

Key = tuple[Run, ...] | tuple[int, int]


class TextNode(Protocol):
    """A piece of text; the path from the root through it has `end` tokens; `locks` counts its users."""

    runs: Sequence[Run]
    end: int
    locks: int

    @property
    def parent(self) -> Self: ...
    @property
    def children(self) -> "dict[Key, Self]": ...


N = TypeVar("N", bound=TextNode)


def key_of(runs: Sequence[Run], page_size: int = 1) -> Key:
    """The key that tells a text from its siblings."""
    return runs[0][:2] if page_size == 1 else tuple(cut(runs, 0, page_size))


def follow(node: N, rest: list[Run], page_size: int = 1) -> tuple[N, int]:
    """Descend from the end of `node` along a text (runs in reverse order), removing the matched part from it.

    Returns the last node that has some of it, and how many of that node's tokens belong to the path, in
    whole pages.
    """
    common = node.end - node.parent.end
    while rest:
        child = node.children.get(rest[-1][:2] if page_size == 1 else key_of(rest[::-1], page_size))
        if child is None:
            break
        whole, node = child.end - node.end, child
        common = take_common(child.runs, rest)
        if common < whole:
            common -= common % page_size
            break
    return node, common


def find(root: N, text: Sequence[Run], most: int, page_size: int = 1) -> tuple[N, int, int]:
    """The longest prefix of the first `most` tokens of a text that is in a tree; changes nothing.

    Returns the last node of the path, how many of its tokens belong to the path, and how many tokens of the
    path are not locked. The root is locked.
    """
    end, common = follow(root, cut(text, 0, most - most % page_size)[::-1], page_size)
    idle, node = 0, end
    while not node.locks:
        idle += common if node is end else node.end - node.parent.end
        node = node.parent
    return end, common, idle


def put_above(head: N, node: N, page_size: int = 1) -> None:
    """Insert `head`, which has the start of `node`'s text, as the parent of `node`.

    The caller must still set `node.parent`.
    """
    tokens = head.end - head.parent.end
    head.parent.children[key_of(head.runs, page_size)] = head
    node.runs = cut(node.runs, tokens, tokens + node.end - head.end)
    head.children[key_of(node.runs, page_size)] = node


def nodes_below(root: N) -> Iterator[N]:
    """All nodes except the root, depth first, each before its children, the first child first."""
    left = list(root.children.values())[::-1]
    while left:
        node = left.pop()
        yield node
        left += list(node.children.values())[::-1]
