"""How busy the links are that tiers copy over, besides each GPU's own: table rows, and words.

    the ssd link 1.0 % and 3.2 %, the uplinks of 2 machines at most 0.2 % and 0.1 %

The first number is for loads, the second for stores. A summary has them by name in `tier.links`
(sim/link_summary.py).
"""

from collections.abc import Mapping, Sequence
from functools import partial

from kvsim.reports.palette import Summary, percent_text
from kvsim.reports.quantities import Quantity, percent_at
from kvsim.reports.ranked import System
from kvsim.reports.seeds.intervals import interval
from kvsim.reports.seeds.words import with_spread

WAYS = {"loads": "load_busy_share", "stores": "store_busy_share"}
"""Direction in words -> its busy share in a summary."""
_OF = " of "


def each_link(systems: Sequence[System]) -> list[Quantity]:
    """For a page: how busy each link was in each direction."""
    names = dict.fromkeys(name for seeds in systems for name in _links(seeds[0]))
    return [
        Quantity(
            f"{_called([name])} is busy with {way}", partial(_most, [name], share), percent_text, rare=True
        )
        for name in names
        for way, share in WAYS.items()
    ]


def links_by_kind(systems: Sequence[System]) -> list[Quantity]:
    """For a terminal: how busy links of each kind were, per direction; the busiest if there are several."""
    kinds: dict[str, dict[str, None]] = {}
    for name in dict.fromkeys(name for seeds in systems for name in _links(seeds[0])):
        kinds.setdefault(name.partition(_OF)[0], {})[name] = None
    return [
        Quantity(f"{_short(kind)} busy, {way}", partial(_most, [*names], share), percent_text, rare=True)
        for kind, names in kinds.items()
        for way, share in WAYS.items()
    ]


def links_in_words(seeds: System, ways: Sequence[str] = tuple(WAYS)) -> list[str]:
    """A phrase for the links of each kind: means over the seeds."""
    kinds: dict[str, list[str]] = {}
    for name in _links(seeds[0]):
        kinds.setdefault(name.partition(_OF)[0], []).append(name)
    said = []
    for names in kinds.values():
        values = [interval([_most(names, WAYS[way], summary) for summary in seeds]) for way in ways]
        shares = " and ".join(with_spread(percent_text, value) for value in values)
        said.append(f"{_called(names)} {'at most ' * (len(names) > 1)}{shares}")
    return said


def _called(names: Sequence[str]) -> str:
    """`the ssd link of machine 0`; `the uplinks of 2 machines`."""
    kind, _, whose = names[0].partition(_OF)
    thing = f"the {_short(kind)}"
    if len(names) > 1:
        return f"{thing}s of {len(names)} machines"
    return f"{thing} of {'the fleet' if whose == 'all' else whose}" if whose else thing


def _short(kind: str) -> str:
    return kind if kind == "uplink" else f"{kind} link"


def _most(names: Sequence[str], share: str, summary: Summary) -> float | None:
    """Per cent of the time that the busiest of these links was busy."""
    shares = [percent_at("tier", "links", name, share)(summary) for name in names]
    return max([each for each in shares if each is not None], default=None)


def _links(summary: Summary) -> Mapping[str, object]:
    return (summary.get("tier") or {}).get("links") or {}
