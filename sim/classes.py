"""Classes by name: built in, a user's own as `package.module:Class`, or passed as a class.

A class that was passed as an object, e.g. in a notebook, appears under its name in `config.json` and on
labels. The name stays known for the life of the process, so a class that cannot be imported, such as one
defined in a function, works too.
"""

from collections.abc import Mapping
from typing import TypeVar

from kvsim.sim.errors import KvsimError, listed, unknown
from kvsim.sim.plugins import imported, named_here, named_object
from kvsim.sim.sources import left_open

T = TypeVar("T")

OURS = ("kvsim.allocators.", "kvsim.sim.")
"""Classes in these packages may always be named: some that papers and contracts use are in no table."""

_HANDED_OVER: dict[str, type] = {}


def name_of(chosen: str | type) -> str:
    """The name of a class, `module:Class`; a name is returned unchanged."""
    if isinstance(chosen, str):
        return chosen
    name = f"{chosen.__module__}:{chosen.__qualname__}"
    _HANDED_OVER[name] = chosen
    return name


def class_named(field: str, name: str, table: Mapping[str, str], base: type[T]) -> type[T]:
    """The class with a name in the table, or the user's own `module:Class`.

    Raises
    ------
    KvsimError
        The name is unknown, the module cannot be imported, or the object is not a subclass of `base` or
        lacks a method that `base` leaves to its subclasses.
    """
    found: object = _HANDED_OVER.get(name)
    if found is None:
        if name in table:
            found = imported(table[name])
        elif name.startswith(OURS) and ":" in name:
            found = named_here(field, name)
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
    """The abstract methods that a class leaves unimplemented."""
    names = sorted({name for base in found.__mro__ for name in left_open(base)})
    said_by = {name: next(base for base in found.__mro__ if name in vars(base)) for name in names}
    return [name for name in names if name in left_open(said_by[name])]
