"""What the tables of a group of layers need to know: its kind, its block size, how far back a token sees.

full      every token is kept          window   a token sees the last `reach` tokens
chunk     a token sees its own chunk of `reach` tokens
state     one for the whole sequence, plus those kept at earlier places for prefixes
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.allocators.options import Hybrid as Layers
from kvsim.allocators.options import layers_named


@dataclass(frozen=True, kw_only=True)
class GroupSpec:
    """A group of layers.

    Attributes
    ----------
    kind : "full", "window", "chunk" or "state"
    block_size : int
    reach : int or None
        Tokens of the window or of a chunk.
    checkpoint_grid : int or None
        For states: where a kernel can save one inside a prompt (1: anywhere); None: nowhere.
    """

    kind: str
    block_size: int
    reach: int | None = None
    checkpoint_grid: int | None = None

    @property
    def layers(self) -> str:
        """The name of its layers."""
        return layers_named(self.kind, self.reach)

    def __post_init__(self) -> None:
        if self.kind not in ("full", "window", "chunk", "state"):
            raise ValueError(f"kind must be full, window, chunk or state, got {self.kind!r}")
        if (self.reach is None) != (self.kind in ("full", "state")):
            raise ValueError(f"reach belongs to windows and chunks, got {self.reach} of kind {self.kind}")


def specs(layers: Layers) -> list[GroupSpec]:
    """The specification of each group."""
    return [
        GroupSpec(
            kind=group.kind,
            block_size=group.block_size,
            reach=group.reach,
            checkpoint_grid=group.checkpoint_grid,
        )
        for group in layers.groups
    ]


def most_blocks(group: GroupSpec, longest: int, in_flight: int) -> int | None:
    """The most blocks that a window or chunk holds while a prompt is computed."""
    if group.reach is None:
        return None
    if group.kind == "window":
        return -(-min(group.reach - 1 + in_flight, longest) // group.block_size) + 1
    return -(-min(group.reach + in_flight, longest) // group.block_size)


def alike(groups: Sequence[GroupSpec], shared: bool) -> list[list[int]]:
    """Numbers of groups with the same specification and the same pool, full attention first."""
    found: dict[tuple[GroupSpec, int], list[int]] = {}
    for number, group in enumerate(groups):
        found.setdefault((group, 0 if shared else number), []).append(number)
    return sorted(found.values(), key=lambda numbers: groups[numbers[0]].kind != "full")
