"""The share of KV memory that each kind of layer holds, for models with several kinds of layers.

    1 group of 10 full-attention layers                                            21.0 % of the memory
    4 groups of 9 and 2 of 8 sliding-window layers (1,024 tokens), padded to 10    61.8 %

Shares are of the whole memory; with the free part they sum to the ledger.
"""

import re
from collections.abc import Sequence
from functools import partial
from statistics import fmean

from rich.table import Table
from rich.text import Text

from kvsim.reports.fitting import ruled_table
from kvsim.reports.palette import KINDS, Summary, number, percent_text
from kvsim.reports.quantities import Quantity, at

_PLAIN = re.compile(r"[a-z-]+ layers?( \([\d,]+ tokens\))?")

Shares = dict[str, dict[str, float]]
"""Kind of layer in words -> ledger kind -> per cent of the whole memory."""


def by_layers(seeds: Sequence[Summary], saturated: bool) -> Shares:
    """Means over the seeds, while requests waited or over the whole run; empty if layers share tables."""
    part = "saturated" if saturated else "average"
    found: Shares = {}
    for name, told in _groups(seeds[0]).items():
        parts = [_groups(seed).get(name, {}).get(part) or {} for seed in seeds]
        there = [kind for kind in KINDS if any(kind in each for each in parts)]
        found[told["in_words"]] = {
            kind: fmean(number(each.get(kind)) or 0.0 for each in parts) for kind in there
        }
    return found


def layers_table(seeds: Sequence[Summary], saturated: bool) -> Table | None:
    """A row per kind of layer, a column per ledger kind that occurs."""
    found = by_layers(seeds, saturated)
    if not found:
        return None
    kinds = [kind for kind in KINDS if any(each.get(kind, 0.0) >= 0.05 for each in found.values())]
    when = "requests waited" if saturated else "whole run"
    table = ruled_table(f"KV memory by layers ({when})", *kinds)
    for words, shares in found.items():
        cells = [percent_text(shares[kind]) if kind in shares else "-" for kind in kinds]
        table.add_row(Text(words), *cells)
    return table


def quantities(systems: Sequence[Sequence[Summary]]) -> list[Quantity]:
    """For a page: the memory that each kind of layer holds, and how much of it is empty."""
    found = []
    for name in dict.fromkeys(name for seeds in systems for name in _groups(seeds[0])):
        called = _called(systems, name)
        token = at("memory", "groups", name, "average", "token")
        found.append(Quantity(f"tokens in {called}", token, percent_text))
        found.append(Quantity(f"empty slots of {called}", partial(_empty, name), percent_text, rare=True))
    return found


def _empty(name: str, summary: Summary) -> float | None:
    """Per cent of the memory that these layers hold but do not use."""
    parts = [at("memory", "groups", name, "average", kind)(summary) for kind in ("reserved", "internal")]
    return sum(part for part in parts if part is not None) if parts != [None, None] else None


def _called(systems: Sequence[Sequence[Summary]], name: str) -> str:
    """The name these layers have in all systems, or else the name without the grouping."""
    words = {_groups(seeds[0])[name]["in_words"] for seeds in systems if name in _groups(seeds[0])}
    first = str(words.pop())
    plain = _PLAIN.search(first)
    return first if not words or plain is None else plain.group()


def _groups(summary: Summary) -> dict[str, dict[str, object]]:
    return summary["memory"].get("groups") or {}
