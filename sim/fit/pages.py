"""Pages and groups: how vLLM 0.33.0 lays layers of unlike sizes over one pool of blocks.

A block id is worth one page in each layer of one group; the groups draw ids from one pool, so all groups
must have pages of equal bytes. From the layers' own pages the groups follow in this order
(vllm/v1/core/kv_cache_planning.py, get_kv_cache_groups):

1. all layers alike: one group
2. all need the same slots (all full attention, say) but differ in bytes: one group of unlike pages
3. blocks outermost in memory: groups packed side by side (packing.py)
4. else pages are made equal, and each kind of layer is cut into groups of one size

Equal pages: a smaller page holds more tokens (its block size grows by the ratio), and where the ratio is no
whole number, or the page is a recurrent state, it is padded. Group size: the smallest number of layers of a
kind, or the largest where that is less than 1.5 times as many; the last group of a kind may be short, and a
block of it wastes the difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import NamedTuple

from kvsim.sim.errors import KvsimError

FULL = ("full_attention", "mla_attention")


@dataclass(frozen=True, kw_only=True)
class Page:
    """What one layer asks of the pool.

    Attributes
    ----------
    kind : str
        As in sim/kv_layers.py.
    block_size : int
        Tokens of a block; of a recurrent layer those between two states that are kept.
    bytes_each : int
        Bytes of one token of an attention layer; of the whole state of a recurrent one.
    padded_bytes : int or None
        Bytes that the page is stretched to.
    shape : tuple
        What tells pages of one size apart: heads, dimensions, type; the state's shapes.
    window, chunk : int or None
        Of sliding windows and chunks; also where such a layer has been promoted to full attention.
    aligned : bool
        Recurrent: whether a state is kept at block ends, so that prefixes can be hit.
    every_block : bool
        Recurrent: whether a sequence keeps the states of all its blocks (--mamba-cache-mode all).
    checkpoints : int
        Recurrent: blocks that a prompt takes beside its two to leave a state in its middle.
    stride_bytes : int
        What the distance between two blocks must be a multiple of.
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
        """Bytes that hold something."""
        return self.bytes_each if self.kind == "mamba" else self.block_size * self.bytes_each

    @property
    def bytes(self) -> int:
        """Bytes of the page, padding included."""
        return self.content_bytes if self.padded_bytes is None else self.padded_bytes

    @property
    def stride(self) -> int:
        """Bytes from one block's page to the next."""
        return -(-self.bytes // self.stride_bytes) * self.stride_bytes


Layers = Sequence[tuple[int, Page]]
"""(number of the layer, its page), in the order in which the engine builds them."""


class Group(NamedTuple):
    """Layers that share a block table."""

    layers: tuple[int, ...]
    pages: tuple[Page, ...]

    @property
    def page(self) -> Page:
        """The first layer's page, which stands for the group."""
        return self.pages[0]

    @property
    def kind(self) -> str:
        """What the group keeps: full attention where latents and other full layers are mixed."""
        kinds = {page.kind for page in self.pages}
        return kinds.pop() if len(kinds) == 1 else "full_attention"

    @property
    def bytes(self) -> int:
        """Bytes of one block of the group."""
        return sum(page.stride for page in self.pages)


class Request(NamedTuple):
    """What decides how many blocks the longest request takes.

    max_model_len : its tokens; in_flight_tokens : those scheduled and not yet settled (twice the token budget
    with asynchronous scheduling); encoder_tokens : of the input that cross attention sees.
    """

    max_model_len: int
    in_flight_tokens: int
    encoder_tokens: int = 0


def blocks_of(page: Page, request: Request) -> int:
    """Blocks that the longest request may hold of a group at once.

    Full attention: of all tokens. Window and chunk: of what is seen and in flight, and a window may start
    inside a block. Recurrent: one state; with prefixes kept two, and the checkpoints.
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


# -- groups ------------------------------------------------------------------------------------------


def groups_of(layers: Layers, disable_hybrid: bool = False, blocks_outermost: bool = False) -> list[Group]:
    """The groups of a model's layers.

    Parameters
    ----------
    layers : sequence of (int, Page)
    disable_hybrid : bool
        --disable-hybrid-kv-cache-manager: windows and chunks keep every token where other layers do.
    blocks_outermost : bool
        Whether a block's pages of all layers lie side by side, so that they may differ in size.

    Raises
    ------
    KvsimError
        When no groups can be made: vLLM refuses to start.
    """
    if disable_hybrid:
        layers = _promoted(layers)
    if not layers:
        return []
    pages = [page for _, page in layers]
    if mergeable(pages) or _same_slots(pages):
        return [_group(layers)]
    if blocks_outermost and len({page.bytes for page in pages}) > 1:
        from kvsim.sim.fit.packing import packed_groups

        return packed_groups(layers)
    try:
        equal = _equal_pages(layers)
    except _Unequal as unequal:
        promoted = _fallback(layers)
        if promoted is None:
            raise KvsimError(str(unequal)) from unequal
        return [_group(promoted)]
    return _split(equal)


class _Unequal(Exception):
    """Pages that can be made equal neither by block sizes nor by padding."""


def _group(layers: Layers) -> Group:
    return Group(tuple(number for number, _ in layers), tuple(page for _, page in layers))


def mergeable(pages: Sequence[Page]) -> bool:
    """Whether layers with these pages may share a block table as if they were one.

    Full layers may differ in the window or chunk that they see, if only one of them sees one.
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


def _same_slots(pages: Sequence[Page]) -> bool:
    """Whether all layers need the same number of slots, though perhaps not of the same bytes."""
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


same_slots = _same_slots


def _promoted(layers: Layers) -> Layers:
    """Windows and chunks as full attention, which keeps the sizes of their pages."""
    pages = [page for _, page in layers]
    if mergeable(pages) or _same_slots(pages):
        return layers
    full_sizes = {page.block_size for page in pages if page.kind in FULL}
    local = ("sliding_window", "chunked_local_attention")
    if full_sizes and any(page.kind in local for page in pages):
        common = full_sizes.pop() if len(full_sizes) == 1 else None
        layers = [
            (number, _as_full(page, common or page.block_size) if page.kind in local else page)
            for number, page in layers
        ]
    pages = [page for _, page in layers]
    if mergeable(pages) or _same_slots(pages):
        return layers
    kinds = ", ".join(sorted({page.kind for page in pages}))
    raise KvsimError(
        f"disable_hybrid_kv_cache_manager must be left out: layers of kinds {kinds} cannot share one block "
        "table (vLLM: Failed to promote local KV cache specs to one unified type)"
    )


def _as_full(page: Page, block_size: int) -> Page:
    padded = page.padded_bytes
    if padded is not None:
        padded = max(padded, page.bytes_each * block_size)
    return replace(page, kind="full_attention", block_size=block_size, padded_bytes=padded)


def _fallback(layers: Layers) -> Layers | None:
    """A latent beside windows whose pages do not fit: every layer keeps every token."""
    kinds = {page.kind for _, page in layers}
    if "chunked_local_attention" in kinds or not {"mla_attention", "sliding_window"} <= kinds:
        return None
    try:
        promoted = _promoted(layers)
    except KvsimError:
        return None
    return promoted if _same_slots([page for _, page in promoted]) else None


def _equal_pages(layers: Layers) -> Layers:
    """The layers with pages of the largest page's bytes."""
    largest = max(page.bytes for _, page in layers)
    return [(number, _enlarged(number, page, largest)) for number, page in layers]


def _enlarged(number: int, page: Page, to_bytes: int) -> Page:
    if page.bytes == to_bytes:
        return page
    if page.kind != "mamba" and to_bytes % page.bytes == 0:
        larger = replace(page, block_size=page.block_size * (to_bytes // page.bytes))
        if larger.bytes != to_bytes:
            raise _Unequal(f"layer {number}: a padded page of {page.bytes} bytes cannot become {to_bytes}")
        return larger
    if page.kind == "mla_attention":
        raise _Unequal(
            f"layer {number}: a latent's page of {page.bytes} bytes does not divide the largest of "
            f"{to_bytes} bytes, and a latent cannot be padded"
        )
    return replace(page, padded_bytes=to_bytes)


def _split(layers: Layers) -> list[Group]:
    """Groups of equal size, layer i of a kind in group i modulo the number of groups."""
    kinds = _buckets(layers)
    fewest, most = (choose(len(bucket) for bucket in kinds) for choose in (min, max))
    size = most if most < 1.5 * fewest else fewest
    groups = []
    for bucket in kinds:
        count = -(-len(bucket) // size)
        groups += [_group(bucket[first::count]) for first in range(count)]
    return groups


def _buckets(layers: Layers) -> list[list[tuple[int, Page]]]:
    """Layers with the same page, then those joined that may share a block table."""
    by_page: dict[Page, list[tuple[int, Page]]] = {}
    for layer in layers:
        by_page.setdefault(layer[1], []).append(layer)
    buckets: list[list[tuple[int, Page]]] = []
    for page, alike in by_page.items():
        for bucket in buckets:
            if _joins(bucket, page):
                bucket.extend(alike)
                break
        else:
            buckets.append(list(alike))
    return buckets


def _joins(bucket: Layers, page: Page) -> bool:
    try:
        return mergeable([*dict.fromkeys(page for _, page in bucket), page])
    except KvsimError:
        return False


# -- blocks ------------------------------------------------------------------------------------------


def bytes_per_block(groups: Sequence[Group], blocks_outermost: bool = False) -> int:
    """Bytes that one block id takes: those of the widest group."""
    widest = max(sum(page.stride for page in group.pages) for group in groups)
    if not blocks_outermost:
        return widest
    widest = max(sum(page.bytes for page in group.pages) for group in groups)
    grain = lcm(*(page.stride_bytes for group in groups for page in group.pages))
    return -(-widest // grain) * grain


def scheduler_block_sizes(groups: Sequence[Group], block_size: int, prefix_caching: bool) -> tuple[int, int]:
    """Tokens that schedules are rounded to, and tokens of a hash: the multiple and divisor of all groups."""
    if len(groups) <= 1:
        size = groups[0].page.block_size if groups else block_size
        return size, size
    sizes = [group.page.block_size for group in groups]
    together = lcm(*sizes)
    recurrent = [page for group in groups for page in group.pages if page.kind == "mamba"]
    if not prefix_caching or not all(page.aligned for page in recurrent):
        return together, together
    return together, gcd(*sizes)
