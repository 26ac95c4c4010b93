"""Full and windowed layers, each with pages of its own, that are allocated together: what each kind holds.

    tables    every page of each sequence, once in each group, as if none had been freed or shared
    gone      windowed pages that finished sequences, which still hold memory, have freed

The tables of all groups are equally long. So the slots of a kind that will never be written follow from those
of all layers: the tail of the last page in each group, and all slots of finished sequences.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence

from kvsim.allocators.arena import Slots
from kvsim.allocators.base import Allocator
from kvsim.allocators.options import Groups

Counts = tuple[int, int, int, int, int]
"""Slots in use of windowed layers; slots of the tables of one group; gone; cached, full and windowed."""


class TwoKinds(Allocator):
    """A memory of full and of windowed pages: a sequence has equally long tables of both.

    Attributes
    ----------
    groups : Groups
        How many groups keep all tokens, and how many a window.
    interval : int
        Tokens that must lie behind the window before their pages are freed.
    page_size : int
        Tokens per page.
    """

    page_size: int

    def _keep(self, groups: Groups, interval: int) -> None:
        """Keep layers in these groups; called once, at the start."""
        full, *_, windowed = groups.names
        self.groups, self.interval = groups, interval
        self.slots_per_token = groups.each
        self.kinds = [(full, groups.full), (windowed, groups.windowed)]

    @property
    def block_slots(self) -> int:
        return self.page_size

    def slots_needed(self, tokens: int, bound: int) -> int:
        return self.groups.each * -(-tokens // self.page_size) * self.page_size

    def kind_counts(
        self, internal: Callable[[], int], finals: Callable[[], Mapping[int, int]]
    ) -> Callable[[], Sequence[int]]:
        return self._counts

    @abstractmethod
    def _counts(self) -> Counts:
        """The counts of `held_by_kind`."""

    def held_by_kind(self, used: int, internal: int, counts: Sequence[int]) -> Sequence[Slots]:
        """As in `InGroups`, from `Counts` or their sums over time."""
        (full, windowed, *_), (of_windowed, table, gone, cached, cached_windowed) = self.groups, counts
        never = (internal + gone) // self.groups.each
        return [
            (used - of_windowed, full * table, full * never, cached, 0),
            (of_windowed, windowed * table - gone, windowed * never - gone, cached_windowed, 0),
        ]
