"""The class behind a name: built in, or a user's own as `package.module:Class`, or a class handed over.

A class of one's own goes by its name wherever names go: into `config.json`, onto a label, to a worker. One
that no import finds, such as a class in a function, is remembered under its name for as long as Python runs.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TypeVar

from kvsim.sim.errors import KvsimError, unknown

T = TypeVar("T")

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
        A name that nobody knows, a module that cannot be imported, something else than a subclass of `base`.
    """
    if name in _HANDED_OVER:
        found: object = _HANDED_OVER[name]
    else:
        found = _imported(field, name, table)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise KvsimError(f"{field} {name!r} must be a subclass of {base.__module__}.{base.__name__}")
    return found


def _imported(field: str, name: str, table: Mapping[str, str]) -> object:
    if name not in table and ":" not in name:
        raise unknown(field, name, list(table))
    module, _, attribute = table.get(name, name).partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise KvsimError(f"{field} {name!r} cannot be imported: {error}") from error
