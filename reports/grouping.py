"""Group things by a key."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Key, Thing = TypeVar("Key"), TypeVar("Thing")


def by_key(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, list[Thing]]:
    """Key -> its things; keys and things in the order in which they come."""
    found: dict[Key, list[Thing]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return found
