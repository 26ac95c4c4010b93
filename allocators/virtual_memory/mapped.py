"""Memory in bundles of physical pages that a driver maps: their sizes in bytes and slots, and the calls.

A *bundle* is the page at one offset of every layer's K and V. A slot is a grain of bytes that divides both a
token and a bundle.
"""

from math import gcd
from typing import ClassVar, NamedTuple, Self

from kvsim.allocators.base import Allocator
from kvsim.allocators.options import Options


class Bundle(NamedTuple):
    """A page of every layer's K and V."""

    pages: int
    bytes: int
    slots: int
    token_slots: int
    """slots of a token"""
    cell: int
    """bytes of a token in one page"""

    @classmethod
    def of(cls, model: Options, page_bytes: int) -> Self:
        """The bundle of pages of this size."""
        pages = max(1, model.token_bytes // (model.kv_heads * model.head_dim * model.dtype_bytes))
        size = pages * page_bytes
        grain = gcd(model.token_bytes, size)
        return cls(pages, size, size // grain, model.token_bytes // grain, model.token_bytes // pages)


class Mapped(Allocator):
    """Bundles that are mapped and unmapped while the engine runs.

    Parameters
    ----------
    count : int
        Bundles that the memory holds.
    bundle : Bundle
    map_ns, unmap_ns : int
        Nanoseconds per driver call.

    Attributes
    ----------
    calls : int
        Driver calls that map a bundle: one per page.
    """

    idles: ClassVar[bool] = True
    windows: ClassVar[bool] = True  # a token may take several slots

    def __init__(self, count: int, bundle: Bundle, map_ns: int, unmap_ns: int) -> None:
        super().__init__(count * bundle.slots)
        self.slots_per_token, self.calls = bundle.token_slots, bundle.pages
        self.map_ns, self.unmap_ns = map_ns, unmap_ns

    def retire(self, seq: int) -> int:
        return self.surplus(seq, 0)
