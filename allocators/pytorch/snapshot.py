"""The segments of a card as in torch's snapshot: consecutive blocks, allocated and free, by address.

segment     |# allocated #|... free ...|# allocated #|          20 MiB from the card, cut into blocks
expandable  |# allocated #|... free ...|  unmapped  |# allocated #|      one segment per mapped stretch
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvsim.allocators.pytorch.blocks import Block


class Segment(NamedTuple):
    """Consecutive blocks; in an expandable segment, a mapped stretch."""

    addr: int
    size: int
    small: bool
    stream: int
    expandable: bool
    blocks: tuple[Block, ...]


def segments_of(blocks: Sequence[Block]) -> list[Segment]:
    """The segments formed by these blocks, which must be all mapped blocks."""
    heads = [block for block in blocks if block.prev is None or not block.prev.mapped]
    return [_segment(head) for head in sorted(heads, key=lambda block: block.addr)]


def _segment(head: Block) -> Segment:
    blocks = tuple(_row(head))
    size = sum(block.size for block in blocks)
    return Segment(head.addr, size, head.pool.small, head.stream, head.range is not None, blocks)


def _row(head: Block) -> Iterator[Block]:
    block: Block | None = head
    while block is not None and block.mapped:
        yield block
        block = block.next
