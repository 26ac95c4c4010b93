"""TLSF: two-level segregated fit, the allocator of real-time systems.

    first level: log2 of the size        |   2^12   |   2^13   | ...
    second level: 32 equal steps each    | | | | .. | | | | .. |      a bitmap over both levels

A request is rounded up to the next step only to choose the list: it gets its exact size, and the rest of the
extent goes to the list below its size. Neighbours merge immediately. Everything takes constant time. Waste
per sequence: `bound - tokens`; an extent less than 1/33 larger than the request can be passed over although
it is large enough (external), whereas segregated fit would find it by a search.

Source: Masmano, Ripoll, Crespo, Real: TLSF: a new dynamic memory allocator for real-time systems, ECRTS 2004.
"""

from kvsim.allocators.size_classes.reserving import SizeClasses

BITS = 5


class Tlsf(SizeClasses):
    """Exact sizes from 32 lists per power of two.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena.
    """

    family = "classes"
    idea = "two levels of lists of free extents, 32 per power of two"
    wastes = "bound - tokens; extents less than 1/33 larger than asked"
    used_by = "real-time systems"
    source = "TLSF, ECRTS 2004"

    def __init__(self, capacity_slots: int) -> None:
        super().__init__(capacity_slots, BITS, rounds=False)
