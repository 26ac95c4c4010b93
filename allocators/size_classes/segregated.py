"""Segregated: one list of free extents per power of two; only the list of the request's own size is searched.

    list 2^11   |..1,900..|..1,300..|          request 1,500: the list of 1,024 to 2,047 is searched,
    list 2^12   |..5,000..|                    then any extent of a longer list is cut

It takes the newest extent of the request's own list that is large enough, else the newest of the first list
above; neighbours merge immediately. Waste per sequence: `bound - tokens`; free extents smaller than the
request are lost (external). Like first fit, it finds any extent that fits, but mostly without a search.

Source: Wilson, Johnstone, Neely, Boles: Dynamic storage allocation: a survey and critical review, 1995.
"""

from kvsim.allocators.size_classes.reserving import SizeClasses

BITS = 0


class Segregated(SizeClasses):
    """Exact sizes from one list per power of two.

    Parameters
    ----------
    capacity_slots : int
        Size of the arena.
    """

    family = "classes"
    idea = "a list of free extents per power of two; the first that fits"
    wastes = "bound - tokens; free extents smaller than asked"
    used_by = "general-purpose malloc"
    source = "Dynamic storage allocation: a survey, IWMM 1995"

    def __init__(self, capacity_slots: int) -> None:
        super().__init__(capacity_slots, BITS, rounds=False, searches=True)
