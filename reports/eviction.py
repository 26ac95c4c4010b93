"""Eviction policies as a table, and a card for one: what it evicts, who uses it, how it was checked.

`python -m kvsim.reports.eviction docs/eviction.md` regenerates the table in the page.
"""

from itertools import chain, repeat

from kvsim.allocators.eviction import EVICTION
from kvsim.reports.fitting import FittingTable
from kvsim.reports.listing import card_of, table_of
from kvsim.reports.pages import rewrite, with_table
from kvsim.sim.eviction import eviction_named
from kvsim.sim.option import options_of
from kvsim.sim.sources import module_doc

UNCHECKED = "its description"


def policies_table() -> FittingTable:
    """Each policy with its rule and who uses it."""
    return table_of(
        ("policy", "what leaves, who uses it, its source"),
        ((name, "; ".join(told)) for name, told in _told().items()),
    )


def _told() -> dict[str, tuple[str, ...]]:
    found = {name: eviction_named(name).policy for name in EVICTION}
    return {name: (each.idea, each.used_by, each.source) for name, each in found.items()}


def card(name: str) -> str:
    """One policy: its source, its options, and its module's docstring."""
    chosen = eviction_named(name)
    policy = chosen.policy
    facts = {"rule": policy.idea, "used by": policy.used_by, "source": policy.source}
    facts["equal to"] = policy.checked
    options = [
        f"{head:9}{each.name}={each.about.value}  {each.about.help} Default: {each.in_words}."
        for head, each in zip(chain(["options"], repeat("")), options_of(policy.declares), strict=False)
    ]
    return card_of(chosen.name, facts, *options, "", module_doc(policy.__module__))


def with_policies(text: str) -> str:
    """The page with its table regenerated."""
    rows = ["| policy | what leaves | who uses it | source | equal to |", "|---|---|---|---|---|"]
    for name, told in _told().items():
        checked = eviction_named(name).policy.checked or UNCHECKED
        rows.append(f"| `{name}` | {' | '.join(told)} | {checked} |")
    return with_table(text, "eviction", rows)


if __name__ == "__main__":
    rewrite(with_policies)
