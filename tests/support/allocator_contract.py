"""The built-in allocators, and the arenas on which the contract is tried for each of them.

For your own class: `kvsim.allocators.contract.check_allocator(Mine)`.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kvsim.allocators.base import Allocator
from kvsim.allocators.buddy import Buddy
from kvsim.allocators.contiguous import Contiguous
from kvsim.allocators.dynamic import Dynamic
from kvsim.allocators.hybrid.groups import Hybrid
from kvsim.allocators.hybrid.kinds import Jenga, JengaPacked, OfKinds, Split
from kvsim.allocators.lightllm import LightLLM
from kvsim.allocators.llama.contiguous import LlamaContiguous
from kvsim.allocators.llama.scattered import LlamaScattered
from kvsim.allocators.lossy.budget import Budget
from kvsim.allocators.lossy.h2o import H2O
from kvsim.allocators.lossy.kivi import Kivi
from kvsim.allocators.lossy.streaming_llm import StreamingLLM
from kvsim.allocators.mlc import Mlc
from kvsim.allocators.options import CacheRules, Groups, LayerGroup, Options
from kvsim.allocators.options import Hybrid as Layers
from kvsim.allocators.paged import Paged
from kvsim.allocators.pytorch.dynamic_cache import DynamicCache
from kvsim.allocators.pytorch.static_cache import StaticCache
from kvsim.allocators.radix import Radix
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.allocators.sglang.dual_windows import SglangDual, split
from kvsim.allocators.sglang.unified_windows import SglangUnified
from kvsim.allocators.sglang.windowed import SglangWindowed
from kvsim.allocators.size_classes.offset import Offset, OffsetExact
from kvsim.allocators.size_classes.segregated import Segregated
from kvsim.allocators.size_classes.slab import Slab
from kvsim.allocators.size_classes.tlsf import Tlsf
from kvsim.allocators.tensorrt_llm import TensorRTLLM
from kvsim.allocators.tgi import Tgi
from kvsim.allocators.virtual_memory.kvcached import Kvcached
from kvsim.allocators.virtual_memory.vattention import (
    VAttention,
    VAttention2M,
    VAttention128K,
    VAttention256K,
    VAttentionBestFit,
    VAttentionEager,
)

GROUPS = Groups(full=1, windowed=2, window=32)


def sizes(cell: int, block_size: int = 16) -> Options:
    """A model of one layer, whose keys of a token take `cell` bytes."""
    return Options(
        block_size=block_size,
        token_bytes=2 * cell,
        layers=1,
        kv_heads=1,
        head_dim=cell // 2,
        dtype_bytes=2,
        max_sequences=20,
        max_model_len=12_000,
    )


UNLIKE = Layers(
    (
        LayerGroup("full", 4, page_bytes=24),
        LayerGroup("window", 4, 10, page_bytes=16),
        LayerGroup("chunk", 2, 8, page_bytes=12),
        LayerGroup("state", 1 << 20, page_bytes=20),
    ),
    1 << 20,  # prompts are computed whole
)
"""Groups of every kind, with two block sizes, and four sizes of their own pages."""


def hybrid(capacity_slots: int) -> Allocator:
    """Unlike layers without a prefix cache."""
    return Hybrid(capacity_slots, UNLIKE, False, 1 << 20)


def windowed(capacity_slots: int) -> Allocator:
    """A full and a windowed pool under a radix tree."""
    return SglangWindowed(GROUPS, split(capacity_slots, GROUPS, 4, 0.8), 4, interval=8)


def of_kinds(kind: type[OfKinds], capacity_slots: int) -> Allocator:
    """Unlike layers in pages of each kind's own size."""
    return kind(capacity_slots, UNLIKE, False, 1 << 20)


BUILT_IN: dict[str, Callable[[int], Allocator]] = {
    "contiguous first fit": Contiguous,
    "contiguous best fit": partial(Contiguous, fit="best"),
    "contiguous next fit": partial(Contiguous, fit="next"),
    "contiguous worst fit": partial(Contiguous, fit="worst"),
    "dynamic first fit": Dynamic,
    "dynamic best fit": partial(Dynamic, fit="best"),
    "buddy": Buddy,
    "paged 1": partial(Paged, block_size=1),
    "paged 16": partial(Paged, block_size=16),
    "paged 256": partial(Paged, block_size=256),
    "radix": Radix,
    "sglang 1": SglangCached,
    "sglang-dual with prefixes": windowed,
    "sglang-dual": partial(SglangDual, groups=GROUPS, page_size=4),
    "sglang-unified eager": partial(SglangUnified, groups=GROUPS, page_size=4),
    "sglang-unified lazy": partial(SglangUnified, groups=GROUPS, page_size=4, interval=8, lazy=True),
    "sglang 16": partial(SglangCached, page_size=16, eviction="slru"),
    "hybrid": hybrid,
    "jenga": partial(of_kinds, Jenga),
    "jenga-packed": partial(of_kinds, JengaPacked),
    "split": partial(of_kinds, Split),
    "offset": Offset,
    "offset-exact": OffsetExact,
    "tlsf": Tlsf,
    "segregated": Segregated,
    "slab": Slab,
    "slab that keeps slabs": partial(Slab, rebalances=False),
    "vattention": partial(VAttention, options=sizes(16_384)),
    "vattention, pages with a rest": partial(VAttention, options=sizes(10_240)),
    "vattention-128k": partial(VAttention128K, options=sizes(16_384)),
    "vattention-256k": partial(VAttention256K, options=sizes(16_384)),
    "vattention-2m": partial(VAttention2M, options=sizes(163_840)),
    "vattention-best": partial(VAttentionBestFit, options=sizes(10_240)),
    "vattention-eager": partial(VAttentionEager, options=sizes(16_384)),
    "kvcached": partial(Kvcached, options=sizes(262_144, 2)),
    "kvcached, straddling blocks": partial(Kvcached, options=sizes(163_840, 4)),
    "kvcached with prefixes": partial(Kvcached, options=sizes(163_840, 4)._replace(cache=CacheRules())),
    "lightllm": LightLLM,
    "mlc": Mlc,
    "tgi": Tgi,
    "tensorrt-llm": TensorRTLLM,
    "dynamic-cache": partial(DynamicCache, tensor_bytes=65_536, tensors=1),
    "dynamic-cache of two tensors": partial(DynamicCache, tensor_bytes=131_072, tensors=2),
    "static-cache": partial(StaticCache, tensor_bytes=65_536, tensors=1),
    "llama-contiguous": LlamaContiguous,
    "llama-contiguous that moves little": partial(LlamaContiguous, most=2),
    "llama-scattered": LlamaScattered,
    "streaming-llm": partial(StreamingLLM, budget=Budget(tokens=20), block_size=4),
    "h2o": partial(H2O, budget=Budget(tokens=60)),
    "h2o of a share of the prompt": partial(H2O, budget=Budget(percent=20), block_size=1),
    "kivi": Kivi,
}
FINE = (
    "paged 1",
    "radix",
    "sglang 1",
    "lightllm",
    "llama-contiguous",
    "llama-contiguous that moves little",
    "llama-scattered",
)
"""Allocators with many regions."""


LEAST = {"paged 256": 256, "jenga": 500, "jenga-packed": 500, "split": 100}
"""The smallest arenas that hold a unit of these: a block, a large page, a page of each kind."""


class Case(NamedTuple):
    name: str
    arena: int
    calls: int

    @property
    def make(self) -> Callable[[int], Allocator]:
        return BUILT_IN[self.name]


def cases(arenas: tuple[int, ...], calls: int) -> list[Case]:
    """Each allocator on each arena that holds a unit of it; fewer calls for the fine ones."""
    return [
        Case(name, arena, max(20, calls * 1_000 // arena) if name in FINE and arena > 1_000 else calls)
        for name in BUILT_IN
        for arena in arenas
        if arena >= LEAST.get(name, 1)
    ]
