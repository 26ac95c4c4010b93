"""Command lines of every registered part and of every option that a part declares, by the registries."""

from collections.abc import Mapping
from random import Random

from kvsim.allocators import ALLOCATORS
from kvsim.sim.option import Named
from kvsim.sim.parts import declared_everywhere, part_named
from kvsim.sim.routers import ROUTERS
from kvsim.sim.schedulers import SCHEDULERS

KINDS: Mapping[str, Mapping[str, str]] = {
    "scheduler": SCHEDULERS,
    "allocator": ALLOCATORS,
    "router": ROUTERS,
}
PARTS = [(kind, name) for kind, registry in KINDS.items() for name in registry]
"""Every part that is registered."""

LETTERS = {"N": "160", "P%": "20%", "MS+US": "0.8+41"}
"""What stands for the value of an option that is a text -> a value of that form."""


def options_of_part(kind: str, name: str) -> list[Named]:
    """The options that a registered part declares."""
    return [each.named for each in declared_everywhere().values() if each.kind == kind and name in each.parts]


def option_words(rng: Random, named: Named) -> list[str]:
    """An option with one of the values that its declaration allows."""
    about = named.about
    if named.type is bool:
        return [rng.choice([named.flag, named.flag.replace("--", "--no-", 1)])]
    if about.allowed:
        return [named.flag, str(rng.choice(about.allowed))]
    if named.type is str:
        return [named.flag, rng.choice([LETTERS.get(letter, letter) for letter in about.value.split("|")])]
    low = max(about.least or 0, about.above or 0)
    if named.type is int:
        found = int(low) + rng.choice([1, 2, 30, 400] if about.above is not None else [0, 1, 2, 30, 400])
        return [named.flag, str(found)]
    high = low + 3 if about.below is None else about.below
    share = rng.choice([0.01, 0.3, 0.9]) if about.above is not None else rng.choice([0, 0.01, 0.3, 0.9])
    return [named.flag, str(low + share * (high - low))]


def part_words(rng: Random, kind: str, name: str) -> list[str]:
    """A part, or a release of it, with some of its own options; a router beside two or three replicas."""
    words = [f"--{kind}", name]
    if kind == "scheduler" and (releases := part_named(kind, name).VERSIONS) and rng.random() < 0.5:
        words[-1] += f"@{rng.choice(releases)}"
    if kind == "router":
        words += ["--replicas", rng.choice("23")]
    for named in options_of_part(kind, name):
        if rng.random() < 0.4:
            words += option_words(rng, named)
    return words


def parts_around(rng: Random, kind: str, name: str) -> list[str]:
    """Such a part, and often some of other kinds beside it."""
    words = part_words(rng, kind, name)
    for other, registry in KINDS.items():
        if other != kind and rng.random() < 0.3:
            words += part_words(rng, other, rng.choice(list(registry)))
    return words
