"""The policies as a tree of families, and a card for one policy."""

from rich.tree import Tree

from kvsim.reports.listing import card_of, own_options
from kvsim.sim.classes import class_named
from kvsim.sim.deployment.engine import POLICIES as ENGINES
from kvsim.sim.errors import unknown
from kvsim.sim.policies import POLICIES
from kvsim.sim.policies.named import policy_class
from kvsim.sim.predictors import PREDICTORS
from kvsim.sim.predictors.base import Predictor
from kvsim.sim.sources import module_doc


def policies_tree() -> Tree:
    """Each family with its policies, and the engines' own policies."""
    tree = Tree("who is served next")
    tree.add("engines' own (sim schedulers)").add(", ".join(ENGINES))
    for family, members in policies_by_family().items():
        branch = tree.add(family)
        for name, idea in members.items():
            branch.add(f"{name}: {idea}")
    return tree


def policies_by_family() -> dict[str, dict[str, str]]:
    """Family -> name -> idea."""
    found: dict[str, dict[str, str]] = {}
    for name in POLICIES:
        kind = policy_class(name)
        found.setdefault(kind.family, {})[name] = kind.idea
    return found


def card(name: str) -> str:
    """One policy: what it needs, its source, its options, and its module's docstring."""
    if name in ENGINES:
        raise unknown("policy", name, list(POLICIES))
    found = policy_class(name)
    facts = {"family": found.family, "needs": found.needs, "source": found.source}
    if found.preempts:
        facts["preempts"] = f"waiting requests displace running ones, which {found.displaced}"
    return card_of(name, facts, *own_options(found.declares), "", module_doc(found.__module__))


def predictor_card(name: str) -> str:
    """One predictor: its form, and its module's docstring."""
    found = class_named("predictor", name, PREDICTORS, Predictor)  # type: ignore[type-abstract]
    return card_of(name, {"form": found.form or name}, "", module_doc(found.__module__))
