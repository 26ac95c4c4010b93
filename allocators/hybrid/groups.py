"""Hybrid: the memory of a model with unlike layers, in groups over one pool of pages, as in vLLM.

    pages of one size    |f|w|w|f|s|w| |f| | |c|      f: full, w: window, s: state, c: cached, unowned
    a page               block_size tokens of one attention group, or one state of a group of recurrent layers

All groups allocate pages of equal bytes from one pool; a group with smaller tokens has longer blocks.
A slot is the smallest unit that divides the tokens of all groups:

    page_slots = lcm(block sizes of the attention groups)      a token of group g: page_slots / block_size_g
"""

from collections.abc import Iterator
from itertools import chain
from math import lcm

from kvsim.allocators.arena import Layout, layout_of_tables
from kvsim.allocators.base import Allocator, Region
from kvsim.allocators.hybrid.grouped import Grouped
from kvsim.allocators.hybrid.memory import OnePool
from kvsim.allocators.hybrid.regions import tables_of
from kvsim.allocators.hybrid.specs import specs
from kvsim.allocators.hybrid.uncached import Uncached
from kvsim.allocators.options import Hybrid as Layers
from kvsim.allocators.options import LayerGroup, Options


class Hybrid(Grouped):
    """Groups of unlike layers over one pool of pages.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena, in pages of `page_slots`; a partial page is left out.
    layers : Layers
        The groups, and how the engine settles and keeps computed tokens.
    caching : bool
        Whether prefixes are kept.
    max_model_len : int
        Length of the longest sequence in tokens.
    """

    family = "layers"
    idea = "a table for each group of equal layers, over one pool of equal pages"
    wastes = "less than a block in each group; padding of pages and groups"
    used_by = "vLLM"
    source = "vllm/v1/core/kv_cache_utils.py, 0.33.0"

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Allocator:
        size = options.block_size
        layers = options.hybrid or Layers(
            (LayerGroup("full", size), LayerGroup("window", size, 2 * size)), options.max_model_len
        )
        if options.cache is None and Uncached.serves(layers, options.max_model_len):
            return Uncached(capacity_slots, layers, options.max_model_len)
        return cls(capacity_slots, layers, options.cache is not None, options.max_model_len)

    def __init__(self, capacity_slots: int, layers: Layers, caching: bool, max_model_len: int) -> None:
        groups = specs(layers)
        self.page_slots = lcm(*(group.block_size for group in groups if group.kind != "state"), 1)
        if capacity_slots < len(groups) * self.page_slots:
            raise ValueError(
                f"capacity_slots must hold a page of {self.page_slots} for each of {len(groups)} "
                f"groups, got {capacity_slots}"
            )
        memory = OnePool(len(groups), capacity_slots // self.page_slots, caching, self.page_slots)
        self.pool = memory.pool
        super().__init__(layers, memory, caching, max_model_len)

    @property
    def block_slots(self) -> int:
        return self.page_slots

    def free_queue(self) -> tuple[int, ...]:
        """The free pages in allocation order, numbered from 1."""
        return tuple(self.pool.queue())

    def regions(self) -> Iterator[Region]:
        return self.layout().regions()

    def layout(self) -> Layout:
        pages = range(1, self.pool.blocks + 1)
        tables = chain(*[tables_of(group, self.cache, at) for at, group in enumerate(self.groups)])
        return layout_of_tables(pages, self.page_slots, tables, self.pool.cached_pages())
