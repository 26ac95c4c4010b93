"""The class behind a name: built in, a user's own as `package.module:Class`, or one that was handed over.

A class that was handed over, as a notebook does, goes by its name wherever names go: into `config.json`, onto
a label. It is remembered under that name for as long as Python runs, so a class that no import finds, such
as one in a function, works too.
"""

from collections.abc import Mapping
from typing import TypeVar

from kvsim.sim.errors import KvsimError, listed, unknown
from kvsim.sim.plugins import imported, named_object
from kvsim.sim.sources import left_open

T = TypeVar("T")

OURS = ("kvsim.allocators.", "kvsim.sim.")
"""Whose classes anybody may name: papers and contracts name some that are in no table."""

_HANDED_OVER: dict[str, type] = {}


def name_of(chosen: str | type) -> str:
    """The name that stands for a class, `module:Class`; a name stays as it is."""
    if isinstance(chosen, str):
        return chosen
    name = f"{chosen.__module__}:{chosen.__qualname__}"
    _HANDED_OVER[name] = chosen
    return name


def class_named(field: str, name: str, table: Mapping[str, str], base: type[T]) -> type[T]:
    """The class behind a name of the table, or behind one of the user's own.

    Raises
    ------
    KvsimError
        A name that nobody knows, a module that cannot be imported, something else than a subclass of `base`,
        one without a method that `base` leaves to its subclasses.
    """
    found: object = _HANDED_OVER.get(name)
    if found is None:
        if name in table:
            found = imported(table[name])
        elif name.startswith(OURS) and ":" in name:
            found = imported(name)
        elif ":" in name:
            found = named_object(field, name)
        else:
            raise unknown(field, name, list(table))
    if not (isinstance(found, type) and issubclass(found, base)):
        raise KvsimError(f"{field} {name!r} must be a subclass of {base.__module__}.{base.__name__}")
    whole: type = found
    missing = _missing(whole)
    if missing:
        raise KvsimError(f"{field} {name!r} does not say {listed(missing)}, as each {base.__name__} must")
    return found


def _missing(found: type) -> list[str]:
    """The methods that a class leaves to its subclasses."""
    names = sorted({name for base in found.__mro__ for name in left_open(base)})
    said_by = {name: next(base for base in found.__mro__ if name in vars(base)) for name in names}
    return [name for name in names if name in left_open(said_by[name])]
