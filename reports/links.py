"""How busy the links are that tiers copy over, besides each GPU's own: table rows, and words.

    the ssd link 1.0 % and 3.2 %, the uplinks of 2 machines at most 0.2 % and 0.1 %

The first number is for loads, the second for stores. A summary has them by name in `tier.links`
(sim/link_summary.py).
"""

from collections.abc import Mapping, Sequence
from functools import partial

from kvsim.reports.grouping import by_key
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
    return [
        Quantity(
            f"{_called([name])} is busy with {way}", partial(_most, [name], share), percent_text, rare=True
        )
        for name in _names(systems)
        for way, share in WAYS.items()
    ]


def links_by_kind(systems: Sequence[System]) -> list[Quantity]:
    """For a terminal: how busy links of each kind were, per direction; the busiest if there are several."""
    return [
        Quantity(f"{_short(kind)} busy, {way}", partial(_most, names, share), percent_text, rare=True)
        for kind, names in by_key(_names(systems), _kind).items()
        for way, share in WAYS.items()
    ]


def links_in_words(seeds: System, ways: Sequence[str] = tuple(WAYS)) -> list[str]:
    """A phrase for the links of each kind: means over the seeds."""
    said = []
    for names in by_key(_links(seeds[0]), _kind).values():
        values = [interval([_most(names, WAYS[way], summary) for summary in seeds]) for way in ways]
        shares = " and ".join(with_spread(percent_text, value) for value in values)
        said.append(f"{_called(names)} {'at most ' * (len(names) > 1)}{shares}")
    return said


def _names(systems: Sequence[System]) -> list[str]:
    return list(dict.fromkeys(name for seeds in systems for name in _links(seeds[0])))


def _kind(name: str) -> str:
    return name.partition(_OF)[0]


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
