"""Memory of hybrid layers in pages of each kind's own size: `jenga`, `jenga-packed` and `split`.

    jenga   | f f f | w w w w w | f f . |       |  one arena of large pages, cut into pages of one kind
    split   | f f f f f . . . . | w w w w . . . |  a share per kind, fixed at the start

A kind consists of all layers that keep the same part of a sequence: every token, a window, a chunk, a state.
Its page holds a block of tokens in all its layers, or one state. So nothing is padded, and blocks are as
short as the kernels allow. A slot is a grain of bytes that divides a token of every kind and every state:

    waste of a sequence = less than a block of each kind
    jenga               + free pages in large pages that another page of the same kind keeps (*idle*)
    split               + free room in the other pools while one is short (*external*)

Prefixes are kept and hit as in `hybrid`. States are kept at the ends of the blocks that vLLM would use.
"""

from math import gcd
from typing import ClassVar

from kvsim.allocators.base import Allocator
from kvsim.allocators.hybrid.grouped import Grouped
from kvsim.allocators.hybrid.memory import LargePageMemory, Memory, SplitPools
from kvsim.allocators.hybrid.uncached import OneKindOfLargePages, Uncached, is_one_kind
from kvsim.allocators.options import Hybrid as Layers
from kvsim.allocators.options import LayerGroup, Options

LOCAL_TENTHS = 8
"""Tokens of windows and chunks, in tenths of full layers' tokens: SGLang's swa_full_tokens_ratio, 0.8."""
STATE_SHARE = 9, 19
"""Memory share of states: SGLang's mamba_full_memory_ratio, 0.9 of what the other layers have."""


def grain_bytes(layers: Layers) -> int:
    """The largest number of bytes that divides a token of every kind and every state."""
    return gcd(*(group.page_bytes // (_tokens(group) or 1) for group in layers.groups))


def page_sizes(layers: Layers) -> list[int]:
    """Grains per page of each kind."""
    grain = grain_bytes(layers)
    return [group.page_bytes // grain for group in layers.groups]


def _tokens(group: LayerGroup) -> int:
    return 0 if group.kind == "state" else group.block_size


class OfKinds(Grouped):
    """Pages of each kind's own size.

    Parameters
    ----------
    capacity_slots : int
        Grains of the arena.
    layers : Layers
        The kinds, with the bytes of their pages.
    caching : bool
        Whether prefixes are kept.
    max_model_len : int
        Length of the longest sequence in tokens.
    """

    family = "layers"
    own_page_sizes = True
    of_one_kind: ClassVar[type[Uncached]] = Uncached
    """The class to use if all layers are alike and prefixes are not kept."""

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Allocator:
        size, half = options.block_size, max(1, options.block_size // 2)
        layers = options.hybrid or Layers(
            (
                LayerGroup("full", size, page_bytes=size),
                LayerGroup("window", half, 2 * size, page_bytes=half),
            ),
            options.max_model_len,
        )
        if options.cache is None and is_one_kind(layers):
            return cls.of_one_kind(capacity_slots, layers, options.max_model_len)
        return cls(capacity_slots, layers, options.cache is not None, options.max_model_len)

    def __init__(self, capacity_slots: int, layers: Layers, caching: bool, max_model_len: int) -> None:
        memory = self._memory_of(capacity_slots, layers, page_sizes(layers), caching)
        super().__init__(layers, memory, caching, max_model_len)

    @classmethod
    def _memory_of(cls, capacity_slots: int, layers: Layers, sizes: list[int], caching: bool) -> Memory:
        raise NotImplementedError


class Jenga(OfKinds):
    """Large pages of the least common multiple of all small pages, cut into small pages of one kind."""

    idea = "large pages, each cut into pages of one kind of layer"
    wastes = "less than a block of each kind; idle pages in large ones"
    used_by = "Jenga; a draft for vLLM-Ascend"
    source = "Zhang et al., Jenga, SOSP 2025, arXiv 2503.18292"

    idles = True
    of_one_kind = OneKindOfLargePages
    packs: ClassVar[bool] = False
    """Whether requests share large pages before they start new ones."""

    @classmethod
    def _memory_of(cls, capacity_slots: int, layers: Layers, sizes: list[int], caching: bool) -> Memory:
        return LargePageMemory(capacity_slots, sizes, caching, cls.packs)


class JengaPacked(Jenga):
    """Like `Jenga`, but requests share large pages before they start new ones."""

    idea = "as jenga; requests share large pages before they begin new ones"
    used_by = "nobody: to compare with jenga"
    packs = True


class Split(OfKinds):
    """A fixed pool for each kind, regardless of demand."""

    idea = "a pool for each kind of layer, split at the start"
    wastes = "less than a block of each kind; what other pools have free"
    used_by = "SGLang (its dual pools)"
    source = "SGLang, server_args.py: swa_full_tokens_ratio and others"

    @classmethod
    def _memory_of(cls, capacity_slots: int, layers: Layers, sizes: list[int], caching: bool) -> Memory:
        counts = shares(capacity_slots, layers, sizes)
        if min(counts) < 1:
            raise ValueError(
                f"capacity_slots must give each pool a page (of {', '.join(map(str, sizes))} slots), "
                f"got {capacity_slots}"
            )
        return SplitPools(counts, sizes, caching)

    def external_slots(self, need: int) -> int:
        """Free slots while one of several pools lacks room for the request at the head of the queue."""
        tokens = need // self.slots_per_token if self.slots_per_token else 0
        if not tokens or len(self.groups) == 1 or self.can_admit(tokens, tokens):
            return 0
        return self.free_slots - self.cached_slots


def shares(capacity_slots: int, layers: Layers, sizes: list[int]) -> list[int]:
    """Pages of each kind's pool, by SGLang's default shares of windows and states."""
    kinds = [group.kind for group in layers.groups]
    states = sum(size for kind, size in zip(kinds, sizes, strict=True) if kind == "state")
    tenths = [0 if kind == "state" else 10 if kind == "full" else LOCAL_TENTHS for kind in kinds]
    part, whole = STATE_SHARE
    for_states = capacity_slots if not any(tenths) else capacity_slots * part // whole if states else 0
    per_token = sum(
        tenth * size // group.block_size
        for tenth, size, group in zip(tenths, sizes, layers.groups, strict=True)
    )
    tokens = (capacity_slots - for_states) * 10 // per_token if per_token else 0
    return [
        for_states // states if kind == "state" else tokens * tenth // 10 // group.block_size
        for kind, tenth, group in zip(kinds, tenths, layers.groups, strict=True)
    ]
