"""Options of one part: schedulers, allocators, costs and others declare their own (allocators/option.py).

    class VllmV0(Scheduler):
        declares: ClassVar[type] = VllmV0Options  # a frozen dataclass, each field an option(...)

A user's settings go by name, `{"watermark": 0.02}`, to the parts that declare them. A setting that no chosen
part declares is refused. All parts are imported only if some name is not a common option.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import NamedTuple

from kvsim.allocators import ALLOCATORS
from kvsim.allocators.base import Allocator
from kvsim.allocators.option import declared_by
from kvsim.sim.classes import class_named
from kvsim.sim.cost import COSTS
from kvsim.sim.cost.step_cost import CostModel
from kvsim.sim.deployment.engine import split_reserve
from kvsim.sim.errors import KvsimError, listed
from kvsim.sim.option import Named, options_of
from kvsim.sim.policies import POLICIES
from kvsim.sim.policies.base import Policy
from kvsim.sim.routers import ROUTERS
from kvsim.sim.routers.base import Router
from kvsim.sim.schedulers import SCHEDULERS
from kvsim.sim.schedulers.base import Scheduler

KINDS: Mapping[str, tuple[Mapping[str, str], type]] = {
    "scheduler": (SCHEDULERS, Scheduler),
    "policy": (POLICIES, Policy),
    "allocator": (ALLOCATORS, Allocator),
    "cost": (COSTS, CostModel),
    "router": (ROUTERS, Router),
}
"""Kind of part, named as the option that chooses it -> its registry and base class."""


class Declared(NamedTuple):
    """An option declared by one or more parts."""

    named: Named
    kind: str
    parts: tuple[str, ...]
    """the names of the built-in parts that declare it"""

    @property
    def defaults(self) -> list[object]:
        """Its default in each of these parts."""
        return [defaults_of(part_named(self.kind, part).declares)[self.named.name] for part in self.parts]


def check_taken(given: Mapping[str, object], parts: Mapping[str, tuple[str, type]]) -> None:
    """Raise KvsimError for an option that no part declares; `parts`: kind -> (name, its options)."""
    known = {name for _, kind in parts.values() for name in declared_by(kind)}
    for name, value in given.items():
        if name not in known and value is not None:
            found = declared_everywhere().get(name)
            if found is None:
                chosen = listed([f"{kind} {named}" for kind, (named, _) in parts.items()])
                raise KvsimError(f"{name} must be left out for {chosen}: no part declares it, got {value!r}")
            raise KvsimError(
                f"{name} must be left out for {found.kind} {parts[found.kind][0]}: it belongs to "
                f"{found.kind} {listed(list(found.parts))}, got {value!r}"
            )


def defaults_of(kind: type) -> dict[str, object]:
    """Option -> default, for the options that a dataclass declares."""
    return {each.name: each.default for each in fields(kind)}


def known_options(chosen: Iterable[tuple[str, object]] = ()) -> Mapping[str, Named]:
    """The options of all built-in parts, and of the user's own classes in `chosen`, by name.

    Parameters
    ----------
    chosen : iterable of (kind, name or class)
        As the user gives them: `("allocator", "mine:Mine:oracle")`.
    """
    found = {name: each.named for name, each in declared_everywhere().items()}
    for kind, given in chosen:
        table, base = KINDS[kind]
        part: Part | None = given if isinstance(given, type) and hasattr(given, "declares") else None
        if isinstance(given, str) and is_own(name := split_reserve(given)[0], table):
            part = class_named(kind, name, table, base)
        if part is not None:
            found |= {each.name: each for each in options_of(part.declares)}
    return found


def is_own(name: str, table: Mapping[str, str]) -> bool:
    """Whether a name is that of a user's own class, `package.module:Class`."""
    return ":" in name and name.partition(":")[0] not in table


@cache
def declared_everywhere() -> Mapping[str, Declared]:
    """The options of all built-in parts by name: imports every part."""
    found: dict[str, Declared] = {}
    for kind, name, named in _all_declared():
        before = found.get(named.name)
        found[named.name] = (
            before._replace(parts=(*before.parts, name)) if before else Declared(named, kind, (name,))
        )
    return found


Part = type[Scheduler] | type[Policy] | type[Allocator] | type[CostModel] | type[Router]


def part_named(kind: str, name: str) -> Part:
    """The class of a built-in part."""
    module, _, attribute = KINDS[kind][0][name].partition(":")
    found: Part = getattr(import_module(module), attribute)
    return found


def _all_declared() -> Iterator[tuple[str, str, Named]]:
    for kind, (table, _) in KINDS.items():
        for name in table:
            for named in options_of(part_named(kind, name).declares):
                yield kind, name, named
