"""Names -> classes: what is built in, and the user's own as `package.module:Class`."""

from collections.abc import Mapping
from importlib import import_module
from typing import TypeVar

from kvsim.allocators import ALLOCATORS
from kvsim.allocators.base import Allocator
from kvsim.sim.errors import KvsimError, unknown

T = TypeVar("T")


def class_named(field: str, name: str, table: Mapping[str, str], base: type[T]) -> type[T]:
    """The class behind a name of the table or behind `package.module:Class`."""
    if name not in table and ":" not in name:
        raise unknown(field, name, list(table))
    module, _, attribute = table.get(name, name).partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise KvsimError(f"{field} {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise KvsimError(f"{field} {name!r} must be a subclass of {base.__module__}.{base.__name__}")
    return found


def allocator_class(name: str) -> type[Allocator]:
    """The allocator of that name: built in, or the user's own as `package.module:Class`."""
    return class_named("allocator", name, ALLOCATORS, Allocator)  # type: ignore[type-abstract]
