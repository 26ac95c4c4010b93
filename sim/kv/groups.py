"""Groups: how vLLM 0.33.0 lays out layers of different sizes over one pool of blocks.

A block id stands for one page in each layer of one group; the groups draw ids from one pool, so all groups
must have pages of equal bytes. Groups are derived from the layers' own pages in this order
(vllm/v1/core/kv_cache_planning.py, get_kv_cache_groups):

1. all layers alike: one group
2. all need the same slots (e.g. all full attention) but differ in bytes: one group of different pages
3. blocks outermost in memory: groups packed side by side (packing.py)
4. else pages are made equal, and each kind of layer is split into groups of one size

Equal pages: a smaller page holds more tokens (its block size grows by the ratio); if the ratio is not a whole
number, or the page is a recurrent state, it is padded. Group size: the smallest number of layers of a kind,
or the largest if that is less than 1.5 times the smallest; the last group of a kind may be short, and its
blocks waste the difference.
"""

from dataclasses import replace

from kvsim.sim.errors import KvsimError
from kvsim.sim.kv.packing import packed_groups
from kvsim.sim.kv.pages import FULL, Group, Layers, Page, mergeable, same_slots


def groups_of(layers: Layers, disable_hybrid: bool = False, blocks_outermost: bool = False) -> list[Group]:
    """The groups of a model's layers.

    Parameters
    ----------
    layers : sequence of (int, Page)
    disable_hybrid : bool
        --disable-hybrid-kv-cache-manager: windows and chunks keep every token if other layers do.
    blocks_outermost : bool
        Whether a block's pages of all layers lie side by side, so that they may differ in size.

    Raises
    ------
    KvsimError
        If no groups can be formed: vLLM refuses to start.
    """
    if disable_hybrid:
        layers = _promoted(layers)
    if not layers:
        return []
    pages = [page for _, page in layers]
    if mergeable(pages) or same_slots(pages):
        return [_group(layers)]
    if blocks_outermost and len({page.bytes for page in pages}) > 1:
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
    """Pages that cannot be made equal, neither by block sizes nor by padding."""


def _group(layers: Layers) -> Group:
    return Group(tuple(number for number, _ in layers), tuple(page for _, page in layers))


def _promoted(layers: Layers) -> Layers:
    """Windows and chunks as full attention, with unchanged page sizes."""
    pages = [page for _, page in layers]
    if mergeable(pages) or same_slots(pages):
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
    if mergeable(pages) or same_slots(pages):
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
    """For a latent with windows whose pages do not fit: every layer keeps every token."""
    kinds = {page.kind for _, page in layers}
    if "chunked_local_attention" in kinds or not {"mla_attention", "sliding_window"} <= kinds:
        return None
    try:
        promoted = _promoted(layers)
    except KvsimError:
        return None
    return promoted if same_slots([page for _, page in promoted]) else None


def _equal_pages(layers: Layers) -> Layers:
    """The layers with pages as large as the largest page."""
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
    """Groups of equal size: layer i of a kind goes to group i modulo the number of groups."""
    kinds = _buckets(layers)
    fewest, most = (choose(len(bucket) for bucket in kinds) for choose in (min, max))
    size = most if most < 1.5 * fewest else fewest
    groups = []
    for bucket in kinds:
        count = -(-len(bucket) // size)
        groups += [_group(bucket[first::count]) for first in range(count)]
    return groups


def _buckets(layers: Layers) -> list[list[tuple[int, Page]]]:
    """Layers with equal pages, merged where they may share a block table."""
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
