"""The KV memory of a run with different kinds of layers: its groups, their pages, and the number of pages.

    Jamba on an H100    groups of 4 layers: 1 full, 7 of states; a page of 80 tokens or a state, 1.3 MiB each

The groups are those of vLLM 0.33.0 (sim/kv/). States come from the pool when sequences arrive; none are
reserved. One page is vLLM's null block. Allocators with their own page sizes get the same number of bytes,
and one group per kind of layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from kvsim.allocators.hybrid.kinds import grain_bytes, page_sizes
from kvsim.allocators.options import Hybrid, LayerGroup
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.memory import KvCapacity, cache_bytes, reported_bytes
from kvsim.sim.errors import KvsimError
from kvsim.sim.kv.blocks import GDN_GRID, KvSettings, compute_capability, paged
from kvsim.sim.kv.groups import groups_of
from kvsim.sim.kv.kinds import kinds_of
from kvsim.sim.kv.pages import Group, bytes_per_block
from kvsim.sim.models.catalog import GIB
from kvsim.sim.models.kv_layers import EVERY_TOKEN
from kvsim.sim.models.spec import ModelSpec

KINDS = {
    "full_attention": "full",
    "mla_attention": "full",
    "sliding_window": "window",
    "chunked_local_attention": "chunk",
    "mamba": "state",
}
"""Kind of layer -> kind of group in the allocator."""


@dataclass(frozen=True)
class HybridMemory:
    """The groups of a run and the pool that they share.

    Attributes
    ----------
    layers : Hybrid
        The groups as the allocator takes them.
    groups : tuple of Group
        The same groups with their layers and bytes.
    page_bytes : int
        Bytes of a page on one GPU, the same in all groups; 0 if they differ.
    capacity : KvCapacity
    """

    layers: Hybrid
    groups: tuple[Group, ...]
    page_bytes: int
    capacity: KvCapacity

    @property
    def in_words(self) -> str:
        """The groups in one line of words."""
        told: dict[tuple[int, str], int] = {}
        for group, layer in zip(self.groups, self.layers.groups, strict=True):
            words = _words(layer)
            if not self.page_bytes:
                words += f", {layer.page_bytes / 2**20:,.2f} MiB a page"
            told[len(group.layers), words] = told.get((len(group.layers), words), 0) + 1
        if not self.page_bytes:
            parts = [f"{layers} layers ({words})" for layers, words in told]
            return f"Layers of a kind share pages of their own size: {'; '.join(parts)}."
        parts = [
            f"{count} group{'s' if count > 1 else ''} of {layers} layer{'s' if layers > 1 else ''} ({words})"
            for (layers, words), count in told.items()
        ]
        return (
            f"Layers in groups over one pool of {self.capacity.slots // self.page_slots:,} pages of "
            f"{self.page_bytes / 2**20:,.2f} MiB: {'; '.join(parts)}."
        )

    @property
    def page_slots(self) -> int:
        """Slots per page: a token of the smallest attention group takes one slot."""
        return page_slots(self.layers)

    def as_json(self) -> list[dict[str, object]]:
        """The groups in JSON types, as in `sim fit`."""
        return [
            {
                "kind": group.kind,
                "layers": list(group.layers),
                "block_size": group.page.block_size,
                "page_bytes": layer.page_bytes or self.page_bytes,
                "window": group.page.window if group.kind == "sliding_window" else None,
                "chunk": group.page.chunk if group.kind == "chunked_local_attention" else None,
            }
            for group, layer in zip(self.groups, self.layers.groups, strict=True)
        ]


def _words(layer: LayerGroup) -> str:
    """What a group keeps, in words."""
    if layer.kind == "state":
        return "a state"
    kept = {
        "full": "all tokens",
        "window": f"the last {layer.reach:,}" if layer.reach else "",
        "chunk": f"chunks of {layer.reach:,}" if layer.reach else "",
    }[layer.kind]
    return f"{kept}, in blocks of {layer.block_size:,}"


def page_slots(layers: Hybrid) -> int:
    """Slots per page: the least common multiple of all attention blocks; 1 without attention."""
    return lcm(*(group.block_size for group in layers.groups if group.kind != "state"), 1)


def is_hybrid(model: ModelSpec) -> bool:
    """Whether some layers do not keep every token, but in a way that a pool of pages can serve."""
    kinds = {layers.kind for layers in model.kv_layers}
    return kinds <= KINDS.keys() and not kinds <= set(EVERY_TOKEN)


def hybrid_memory(deployment: Deployment, asynchronous: bool) -> HybridMemory:
    """The groups of a model's layers, and how much fits.

    Parameters
    ----------
    deployment : Deployment
    asynchronous : bool
        Whether a step is decided before the previous one has ended.

    Raises
    ------
    KvsimError
        If vLLM refuses the settings, a layer is of a kind that no group can hold, or nothing fits.
    """
    engine, model = deployment.engine, deployment.served_model
    settings = KvSettings(
        tensor_parallel_size=deployment.tensor_parallel_size,
        kv_cache_dtype=deployment.kv_cache_dtype,
        block_size=engine.block_size if engine.block_size != type(engine).block_size else None,
        prefix_caching=engine.enable_prefix_caching,
        mamba_cache_mode=engine.mamba_cache_mode,
        max_model_len=deployment.max_model_len,
        disable_hybrid=engine.disable_hybrid_kv_cache_manager,
        compute_capability=compute_capability(deployment.gpu),
    )
    own_sizes = deployment.allocator.own_page_sizes
    layers_of = kinds_of if own_sizes else _groups_of
    groups = tuple(layers_of(model, settings))
    if not groups:
        raise KvsimError(f"model {model.name} caches nothing")
    retention = engine.prefix_cache_retention_interval
    layers = Hybrid(
        tuple(_layer_group(group, group.bytes if own_sizes else 0) for group in groups),
        engine.max_num_batched_tokens * (2 if asynchronous else 1),
        asynchronous,
        None if retention < 0 else retention,
    )
    if own_sizes:
        return HybridMemory(layers, groups, 0, _own_sized(deployment, layers, settings))
    page_bytes = bytes_per_block(groups)
    pages, reason = _pages(deployment, groups, page_bytes)
    size = page_slots(layers)
    per_token = sum(size // group.block_size for group in layers.groups if group.kind != "state")
    slots = pages * size
    capacity = KvCapacity(
        slots // max(per_token, 1), model.kv_bytes_per_token, reason, max(per_token, 1), slots
    )
    return HybridMemory(layers, groups, page_bytes, capacity)


def _groups_of(model: ModelSpec, settings: KvSettings) -> list[Group]:
    """The groups that vLLM forms."""
    return groups_of(paged(model, settings).layers, settings.disable_hybrid)


def _own_sized(deployment: Deployment, layers: Hybrid, settings: KvSettings) -> KvCapacity:
    """The same memory in grains, for pages with one size per kind of layer; given blocks are vLLM's."""
    if deployment.num_gpu_blocks is not None or deployment.kv_tokens is not None:
        groups = _groups_of(deployment.served_model, settings)
        page_bytes = bytes_per_block(groups)
        pages, reason = _pages(deployment, groups, page_bytes)
        memory = pages * page_bytes
    elif reported := reported_bytes(deployment):
        memory, reason = reported
    else:
        usable, reason = cache_bytes(deployment)
        memory = deployment.data_parallel_size * int(usable * deployment.pipeline_parallel_size)
    slots, sizes = memory // grain_bytes(layers), page_sizes(layers)
    least = sum(group.page_bytes for group in layers.groups)
    if slots < sum(sizes):
        raise KvsimError(
            f"model {deployment.model.name} needs {least:,} bytes for a page of each kind of layer, there "
            f"are {max(memory, 0):,} ({reason}): try a larger GPU or --tensor-parallel-size"
        )
    attention = [
        size // group.block_size
        for size, group in zip(sizes, layers.groups, strict=True)
        if group.kind != "state"
    ]
    per_token = max(1, sum(attention))
    return KvCapacity(
        slots // per_token, deployment.served_model.kv_bytes_per_token, reason, per_token, slots
    )


def _layer_group(group: Group, page_bytes: int) -> LayerGroup:
    page = group.page
    if group.kind not in KINDS:
        raise KvsimError(f"layers of kind {group.kind} cannot be kept in groups")
    if group.kind == "mamba":
        if page.every_block:
            return LayerGroup("full", page.block_size, page_bytes=page_bytes)
        grid = (GDN_GRID if "gdn" in page.shape else 1) if page.checkpoints else None
        at = grid if page.aligned else None
        return LayerGroup("state", page.block_size, checkpoint_grid=at, page_bytes=page_bytes)
    reach = {"sliding_window": page.window, "chunked_local_attention": page.chunk}.get(group.kind)
    return LayerGroup(KINDS[group.kind], page.block_size, reach, page_bytes=page_bytes)


def _pages(deployment: Deployment, groups: Sequence[Group], page_bytes: int) -> tuple[int, str]:
    """The number of pages, at least one per group, and where the number comes from."""
    least, ranks = len(groups), deployment.data_parallel_size
    if deployment.num_gpu_blocks is not None:
        if deployment.num_gpu_blocks < least:
            raise KvsimError(
                f"num_gpu_blocks must be at least {least}, one of each group of layers, "
                f"got {deployment.num_gpu_blocks}"
            )
        pages, reason = deployment.num_gpu_blocks * ranks, "given"
    elif deployment.kv_tokens is not None:
        per_token = sum(1 / group.page.block_size for group in groups if group.kind != "mamba")
        pages, reason = int(deployment.kv_tokens * per_token), "given"
    elif reported := reported_bytes(deployment):
        pages, reason = reported[0] // page_bytes, reported[1]
    else:
        usable, words = cache_bytes(deployment)
        pages = ranks * (int(usable * deployment.pipeline_parallel_size // page_bytes) - 1)
        reason = f"{words}, in pages of {page_bytes / GIB * 1024:,.2f} MiB"
    if pages < least:
        raise KvsimError(
            f"model {deployment.model.name} needs a page of {page_bytes / 2**20:,.2f} MiB for each of its "
            f"{least} groups of layers, {max(pages, 0)} fit ({reason}): try a larger GPU or "
            "--tensor-parallel-size"
        )
    return pages, reason
