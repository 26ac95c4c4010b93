"""A model of alike layers without prefixes: what `jenga` and `split` come to where there is but one kind.

    jenga   large page = small page: nothing is idle, a free page serves whoever comes
    split   one pool: nothing is free that another pool has

So growth can be promised, as in uncached.py; the books of kinds.py give the same pages in the same order.
"""

from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.hybrid.uncached import Uncached
from kvsim.allocators.options import Hybrid as Layers


def is_one_kind(layers: Layers) -> bool:
    """Whether all layers keep every token."""
    return [group.kind for group in layers.groups] == ["full"]


@mypyc_attr(allow_interpreted_subclasses=True)
class OneKindOfLargePages(Uncached):
    """Large pages of one small page each: of a sequence that ends the first is allocated first again."""

    idles: ClassVar[bool] = True

    def release(self, seq: int) -> None:
        """As in `Uncached`, the pages in the order in which the arena of large pages lists them."""
        held = self._held.get(seq)
        if held is not None:
            held.blocks.reverse()
        super().release(seq)
