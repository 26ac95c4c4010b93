"""Hits of prefix caches on a trace, by size and policy: a table, miss-ratio.json and miss-ratio.png.

cache, tokens      47.6k    189k    755k
lru                4.1 %   4.1 %   4.7 %      exact at every size; the others at eleven
belady             6.8 %  11.9 %  22.2 %      no policy can do better
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.text import Text

from kvsim.reports.fitting import FittingTable
from kvsim.reports.rundir.formats import write_json

BOUND = "belady"
SHARES = (0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
"""Shares of an unlimited cache's hits: rows of the table."""
MOST_COLUMNS = 6


class Curve(Protocol):
    """The curve of LRU, as workloads/miss_ratio.py computes it."""

    block_tokens: int
    blocks: int

    @property
    def ceiling(self) -> float:
        """Share of the prompt tokens that an unlimited cache hits."""

    @property
    def loose(self) -> float:
        """The same share, if tokens match by content alone, regardless of their prefix."""

    @property
    def overcount(self) -> float:
        """Share of `loose` that no prefix cache can hit."""

    def hit_ratio(self, capacity_tokens: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Share of the prompt tokens that caches of these sizes hit."""

    def tokens_for(self, share: float) -> int | None:
        """The smallest cache that gets this share of an unlimited cache's hits."""


@dataclass(frozen=True)
class Misses:
    """The hits of caches.

    Attributes
    ----------
    curve : Curve
        LRU at every size.
    sizes_tokens : list of int
        The sizes of the other policies' caches.
    hit_ratio : mapping
        Policy -> its share of the prompt tokens at each of these sizes.
    """

    curve: Curve
    sizes_tokens: list[int]
    hit_ratio: dict[str, list[float]]

    @property
    def look_ahead(self) -> tuple[int, str, float, float] | None:
        """Where the bound gains most: size in tokens, the best other policy, its share, the bound's share."""
        bound = self.hit_ratio.get(BOUND)
        others = [name for name in self.hit_ratio if name != BOUND]
        if bound is None or not others:
            return None
        found = []
        for place, size in enumerate(self.sizes_tokens):
            best = max(others, key=lambda name: self.hit_ratio[name][place])
            found.append((size, best, self.hit_ratio[best][place], bound[place]))
        return max(found, key=lambda each: each[3] - each[2])


def miss_ratio_table(misses: Misses) -> Group:
    """Hits of caches by size: LRU by shares of an unlimited cache's hits, all policies by size."""
    curve = misses.curve
    sizes = {share: tokens for share in SHARES if (tokens := curve.tokens_for(share)) is not None}
    hits = {share: float(curve.hit_ratio([tokens])[0]) for share, tokens in sizes.items()}
    rows = ((f"{100 * s:.0f} %", f"{sizes[s]:,}", f"{100 * hit:.2f} %") for s, hit in hits.items())
    table = FittingTable.of(("of the ceiling", "cache, tokens", "prompt tokens hit"), rows)
    said = (
        f"An unlimited prefix cache (LRU, blocks of {curve.block_tokens:,} tokens) hits "
        f"{100 * curve.ceiling:.2f} % of the prompt tokens and holds {curve.blocks:,} blocks."
    )
    if curve.overcount:
        said += (
            f"\nCounted by content alone it would be {100 * curve.loose:.2f} %: "
            f"{100 * curve.overcount:.2f} % of these hits follow a different beginning."
        )
    parts: list[RenderableType] = [Text(said), "", table]
    if len(misses.hit_ratio) > 1:
        parts += ["", _by_policy(misses)]
    if misses.look_ahead is not None:
        size, best, share, bound = misses.look_ahead
        gain = (
            f"\nA look-ahead ({BOUND}) would gain most at {short(size)} tokens: "
            f"{100 * bound:.1f} % hit instead of {100 * share:.1f} % ({best})."
        )
        parts.append(Text(gain))
    return Group(*parts)


def _by_policy(misses: Misses) -> FittingTable:
    step = -(-len(misses.sizes_tokens) // MOST_COLUMNS)
    places = range(len(misses.sizes_tokens))[::-1][::step][::-1]
    heads = ("hit with", *(short(misses.sizes_tokens[place]) for place in places))
    rows = misses.hit_ratio.items()
    return FittingTable.of(
        heads, ((name, *(f"{100 * row[place]:.1f} %" for place in places)) for name, row in rows)
    )


def short(tokens: int) -> str:
    """`47.6k`, `3.02M`: three significant figures."""
    for scale, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if tokens >= scale:
            return f"{tokens / scale:#.3g}".rstrip(".") + letter
    return str(tokens)


def write_numbers(directory: Path, name: str, misses: Misses) -> None:
    """Write miss-ratio.json: the shares of prompt tokens hit."""
    curve = misses.curve
    write_json(
        {
            "trace": name,
            "block_tokens": curve.block_tokens,
            "blocks": curve.blocks,
            "endless_hit_ratio": curve.ceiling,
            "cache_tokens": misses.sizes_tokens,
            "hit_ratio": misses.hit_ratio,
        },
        directory / "miss-ratio.json",
    )
