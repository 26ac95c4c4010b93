"""Offset: Mooncake's OffsetAllocator, extents rounded up to one of eight size classes per power of two.

    |#### tokens ####|~~ reserved ~~|.. internal: bound - tokens ..|. to the next class .|
    '---------------------------- bound ---------------------------'
    '---------- a multiple of 1/8 of the power of two below: the extent allocated --------'

A request takes the newest extent of the first class at or above its own, in constant time; neighbours merge
when one is freed. Waste per sequence: what it does not write, and up to 1/9 by rounding. Free extents of a
class below the request's are lost (external), even one that would just hold it.

`exact` is the original allocator, which allocates the requested size. A freed extent then lies in the class
below its size, so the next request of the same size passes over it: in the steady state of one size, 1/3 of
the memory is lost that way (utilisation 0.66-0.71), against `1 - size / class` with rounding.

Source: mooncake-store/src/offset_allocator of kvcache-ai/Mooncake 3b5a59413;
github.com/sebbbi/OffsetAllocator.
"""

from kvsim.allocators.size_classes.reserving import SizeClasses

BITS = 3


class Offset(SizeClasses):
    """Size classes with eight steps per power of two.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena.
    exact : bool
        Allocate the exact size, like the original, not that of the class.
    """

    family = "classes"
    idea = "extents in classes, eight per power of two; loans are rounded up"
    wastes = "bound - tokens, 1/9 by rounding; extents below a class"
    used_by = "Mooncake Store"
    source = "mooncake-store/src/offset_allocator of Mooncake 3b5a59413"

    def __init__(self, capacity_slots: int, exact: bool = False) -> None:
        super().__init__(capacity_slots, BITS, rounds=not exact)


class OffsetExact(Offset):
    """The allocator before Mooncake's change."""

    idea = "as offset before Mooncake changed it: loans of the exact size"
    wastes = "bound - tokens; a third, as extents miss their own class"
    used_by = "graphics engines"
    source = "github.com/sebbbi/OffsetAllocator"

    def __init__(self, capacity_slots: int) -> None:
        super().__init__(capacity_slots, exact=True)
