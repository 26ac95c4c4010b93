"""The counters of `torch.cuda.memory_stats()` that the bookkeeping changes."""

from collections.abc import Iterator


class Counter:
    """A current value, its peak, and its parts in the small and in the large pool."""

    __slots__ = ("current", "large", "peak", "small")

    def __init__(self) -> None:
        self.current = self.peak = self.small = self.large = 0

    def add(self, amount: int, small: bool) -> None:
        """Add an amount, which may be negative."""
        self.current += amount
        if small:
            self.small += amount
        else:
            self.large += amount
        if self.current > self.peak:
            self.peak = self.current

    def __iter__(self) -> Iterator[int]:
        return iter((self.current, self.peak, self.small, self.large))


class Counters:
    """Torch's statistics, by its names without `_bytes`.

    Attributes
    ----------
    allocated, active, requested : Counter
        Bytes of allocated blocks; the same, including blocks that wait for another stream (there are none
        here); requested bytes.
    reserved : Counter
        Bytes taken from the card.
    inactive_split_bytes, inactive_split : Counter
        Free blocks of segments that also have other blocks and so cannot be freed. Expandable segments are
        left out.
    segments : Counter
        Segments taken from the card; expandable ones are left out.
    retries, ooms, syncs : int
        Segments requested again after all free ones were freed; refusals; times that all free ones were
        freed.
    device_allocs, device_frees : int
        Segments taken and freed; for expandable ones, times that they grew and shrank.
    """

    def __init__(self) -> None:
        self.allocated = Counter()
        self.active = self.allocated
        self.requested = Counter()
        self.reserved = Counter()
        self.inactive_split_bytes = Counter()
        self.inactive_split = Counter()
        self.segments = Counter()
        self.retries = self.ooms = self.syncs = 0
        self.device_allocs = self.device_frees = 0

    def peaks(self) -> dict[str, int]:
        """Peaks and counts so far, as a run reports them at its end."""
        return {
            "allocated_peak_bytes": self.allocated.peak,
            "requested_peak_bytes": self.requested.peak,
            "reserved_peak_bytes": self.reserved.peak,
            "inactive_split_peak_bytes": self.inactive_split_bytes.peak,
            "segments_peak": self.segments.peak,
            "alloc_retries": self.retries,
            "ooms": self.ooms,
            "device_allocs": self.device_allocs,
            "device_frees": self.device_frees,
        }

    def saved(self) -> list[int]:
        numbers = [self.retries, self.ooms, self.syncs, self.device_allocs, self.device_frees]
        return [*numbers, *(number for counter in self._each() for number in counter)]

    def restore(self, saved: list[int]) -> None:
        self.retries, self.ooms, self.syncs, self.device_allocs, self.device_frees, *rest = saved
        for place, counter in enumerate(self._each()):
            counter.current, counter.peak, counter.small, counter.large = rest[4 * place : 4 * place + 4]

    def _each(self) -> tuple[Counter, ...]:
        split = self.inactive_split_bytes, self.inactive_split
        return (self.allocated, self.requested, self.reserved, *split, self.segments)
