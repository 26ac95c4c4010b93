"""Allocators by name: what is built in, and the user's own as `package.module:Class`."""

from kvsim.allocators import ALLOCATORS
from kvsim.allocators.base import Allocator
from kvsim.sim.classes import class_named


def allocator_class(name: str) -> type[Allocator]:
    """The allocator of that name: built in, or the user's own as `package.module:Class`."""
    return class_named("allocator", name, ALLOCATORS, Allocator)  # type: ignore[type-abstract]
