"""What happens beside the arena: calls to the driver, and the host pool. Few allocators have either.

They are kept in an object of their own: CPython keeps attributes in the object itself as long as there are at
most 30 of them, and finds them quicker there. Every step asks an allocator for many.
"""

from mypy_extensions import mypyc_attr

from kvsim.allocators.facts import Facts


class Counts:
    """See `Beside`, which has them as its own."""

    def __init__(self) -> None:
        self.maps = self.unmaps = 0
        self.map_ns = self.unmap_ns = 0
        self.host_capacity_slots = self.host_used_slots = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class Beside(Facts):
    """Counts of what is not in the arena, all of them 0 unless an allocator says more."""

    def __init__(self) -> None:
        self._beside = Counts()

    @property
    def maps(self) -> int:
        """Calls to the driver since the start that give memory."""
        return self._beside.maps

    @maps.setter
    def maps(self, calls: int) -> None:
        self._beside.maps = calls

    @property
    def unmaps(self) -> int:
        """Calls to the driver since the start that take memory back."""
        return self._beside.unmaps

    @unmaps.setter
    def unmaps(self, calls: int) -> None:
        self._beside.unmaps = calls

    @property
    def map_ns(self) -> int:
        """What a call that gives memory takes, in nanoseconds."""
        return self._beside.map_ns

    @map_ns.setter
    def map_ns(self, duration_ns: int) -> None:
        self._beside.map_ns = duration_ns

    @property
    def unmap_ns(self) -> int:
        """What a call that takes memory back takes, in nanoseconds."""
        return self._beside.unmap_ns

    @unmap_ns.setter
    def unmap_ns(self, duration_ns: int) -> None:
        self._beside.unmap_ns = duration_ns

    @property
    def host_capacity_slots(self) -> int:
        """Size of the host pool."""
        return self._beside.host_capacity_slots

    @host_capacity_slots.setter
    def host_capacity_slots(self, slots: int) -> None:
        self._beside.host_capacity_slots = slots

    @property
    def host_used_slots(self) -> int:
        """What swapped sequences hold in the host pool."""
        return self._beside.host_used_slots

    @host_used_slots.setter
    def host_used_slots(self, slots: int) -> None:
        self._beside.host_used_slots = slots
