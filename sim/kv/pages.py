"""Pages of layers, groups of pages, and the blocks of a request, as counted by vLLM 0.33.0.

A block id stands for one page in each layer of one group; the groups draw ids from one pool. groups.py forms
the groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import NamedTuple

from kvsim.sim.errors import KvsimError

FULL = ("full_attention", "mla_attention")


@dataclass(frozen=True, kw_only=True)
class Page:
    """The page that one layer needs in the pool.

    Attributes
    ----------
    kind : str
        As in sim/models/kv_layers.py.
    block_size : int
        Tokens per block; for a recurrent layer, tokens between two kept states.
    bytes_each : int
        Bytes per token of an attention layer; of the whole state of a recurrent one.
    padded_bytes : int or None
        Size of the padded page.
    shape : tuple
        Tells pages of equal size apart: heads, dimensions, type; the state's shapes.
    window, chunk : int or None
        For sliding windows and chunks; kept if such a layer is promoted to full attention.
    aligned : bool
        Recurrent: whether a state is kept at block ends, so that prefixes can be hit.
    every_block : bool
        Recurrent: whether a sequence keeps the states of all its blocks (--mamba-cache-mode all).
    checkpoints : int
        Recurrent: blocks that a prompt takes, besides its two, to save states in its middle.
    stride_bytes : int
        The distance between two blocks must be a multiple of this.
    """

    kind: str
    block_size: int
    bytes_each: int
    padded_bytes: int | None = None
    shape: tuple[object, ...] = ()
    window: int | None = None
    chunk: int | None = None
    aligned: bool = False
    every_block: bool = False
    checkpoints: int = 0
    stride_bytes: int = 1

    @property
    def content_bytes(self) -> int:
        """Bytes that hold content."""
        return self.bytes_each if self.kind == "mamba" else self.block_size * self.bytes_each

    @property
    def bytes(self) -> int:
        """Bytes of the page, including padding."""
        return self.content_bytes if self.padded_bytes is None else self.padded_bytes

    @property
    def stride(self) -> int:
        """Bytes from one block's page to the next."""
        return -(-self.bytes // self.stride_bytes) * self.stride_bytes


Layers = Sequence[tuple[int, Page]]
"""(layer number, its page), in the order in which the engine builds the layers."""


class Group(NamedTuple):
    """Layers that share a block table."""

    layers: tuple[int, ...]
    pages: tuple[Page, ...]

    @property
    def page(self) -> Page:
        """The first layer's page, which stands for all."""
        return self.pages[0]

    @property
    def kind(self) -> str:
        """What the group caches; full attention if it mixes latents with other full layers."""
        kinds = {page.kind for page in self.pages}
        return kinds.pop() if len(kinds) == 1 else "full_attention"

    @property
    def bytes(self) -> int:
        """Bytes of one block of the group."""
        return sum(page.stride for page in self.pages)


class Request(NamedTuple):
    """The properties of the longest request that determine its number of blocks.

    max_model_len : its tokens; in_flight_tokens : those scheduled and not yet settled (twice the token budget
    with asynchronous scheduling); encoder_tokens : of the input that cross attention sees.
    """

    max_model_len: int
    in_flight_tokens: int
    encoder_tokens: int = 0


def blocks_of(page: Page, request: Request) -> int:
    """Blocks of one group that the longest request may hold at once.

    Full attention: for all tokens. Window and chunk: for what is seen and in flight; a window may start
    inside a block. Recurrent: one state; with kept prefixes two, plus the checkpoints.
    """
    length = request.max_model_len
    if page.kind == "mamba" and not page.every_block:
        return 2 + page.checkpoints if page.aligned else 1
    if page.kind == "cross_attention":
        return -(-request.encoder_tokens // page.block_size)
    if page.kind == "sliding_window" and page.window is not None:
        return -(-min(page.window - 1 + request.in_flight_tokens, length) // page.block_size) + 1
    if page.kind == "chunked_local_attention" and page.chunk is not None:
        return -(-min(page.chunk + request.in_flight_tokens, length) // page.block_size)
    return -(-length // page.block_size)


def request_blocks(groups: Sequence[Group], request: Request) -> int:
    """Blocks of the longest request, over all groups."""
    return sum(max(blocks_of(page, request) for page in dict.fromkeys(group.pages)) for group in groups)


def longest_that_fits(groups: Sequence[Group], blocks: int, request: Request) -> int:
    """The longest request that fits in `blocks` blocks, at most `max_model_len`; 0 if none.

    Found by bisection, as in vLLM.
    """

    def fits(length: int) -> bool:
        return request_blocks(groups, request._replace(max_model_len=length)) <= blocks

    if not fits(1):
        return 0
    low, high = 1, request.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def mergeable(pages: Sequence[Page]) -> bool:
    """Whether layers with these pages may share a block table as if they were one.

    Full layers may differ in window or chunk, if only one such size occurs.
    """
    first = pages[0]
    if first.kind != "full_attention":
        return all(page == first for page in pages)
    if any(page.kind != "full_attention" for page in pages):
        return False
    for field in ("window", "chunk"):
        if len({getattr(page, field) for page in pages} - {None}) > 1:
            raise KvsimError(
                f"layers with {field}s of several sizes cannot share a block table without the hybrid "
                "KV cache manager"
            )
    bare = {replace(page, window=None, chunk=None) for page in pages}
    sees = {page.window for page in pages} - {None}, {page.chunk for page in pages} - {None}
    return len(bare) == 1 and not all(sees)


def same_slots(pages: Sequence[Page]) -> bool:
    """Whether all layers need the same number of slots, even if of different bytes."""
    first = pages[0]
    if len({page.block_size for page in pages}) > 1:
        return False
    if first.kind in FULL:
        return all(page.kind in FULL for page in pages)
    if any(page.kind != first.kind for page in pages):
        return False
    return first.kind == "cross_attention" or all(_slots(page) == _slots(first) for page in pages)


def _slots(page: Page) -> tuple[object, ...]:
    recurrent = (page.bytes, page.checkpoints) if page.kind == "mamba" else ()
    return (page.window, page.chunk, *recurrent)


def bytes_per_block(groups: Sequence[Group], blocks_outermost: bool = False) -> int:
    """Bytes that one block id takes: those of the widest group."""
    widest = max(sum(page.stride for page in group.pages) for group in groups)
    if not blocks_outermost:
        return widest
    widest = max(sum(page.bytes for page in group.pages) for group in groups)
    grain = lcm(*(page.stride_bytes for group in groups for page in group.pages))
    return -(-widest // grain) * grain


def scheduler_block_sizes(groups: Sequence[Group], block_size: int, prefix_caching: bool) -> tuple[int, int]:
    """The unit to which schedules round tokens, and tokens per hash: multiple and divisor of all groups."""
    if len(groups) <= 1:
        size = groups[0].page.block_size if groups else block_size
        return size, size
    sizes = [group.page.block_size for group in groups]
    together = lcm(*sizes)
    recurrent = [page for group in groups for page in group.pages if page.kind == "mamba"]
    if not prefix_caching or not all(page.aligned for page in recurrent):
        return together, together
    return together, gcd(*sizes)
