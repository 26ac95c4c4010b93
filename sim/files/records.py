"""Builds dataclasses from JSON that others may have written; every value must have its field's type.

{"replicas": 2, "router": ["x"]}   -->   fleet.router must be str, got ['x']
"""

from collections.abc import Mapping
from math import isnan
from types import NoneType, UnionType
from typing import TypeVar, Union, get_args, get_origin, get_type_hints

from kvsim.sim.errors import KvsimError

T = TypeVar("T")

PLAIN = (str, bool, int, float, NoneType)


def record_of(kind: type[T], values: object, what: str) -> T:
    """The dataclass with these values; KvsimError names a value of the wrong type."""
    if not isinstance(values, Mapping):
        raise KvsimError(f"{what} must be an object, got {values!r}")
    hints = get_type_hints(kind)
    for name, value in values.items():
        if name in hints and not _fits(value, hints[name]):
            raise KvsimError(f"{what}.{name} must be {_words(hints[name])}, got {value!r}")
    return kind(**values)


def _fits(value: object, hint: object) -> bool:
    """Whether a JSON value fits a field; a whole number fits a float."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_fits(each, get_args(hint)[0]) for each in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and not isnan(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in PLAIN:
        return isinstance(value, hint) if isinstance(hint, type) else False
    return not isinstance(value, PLAIN) or (isinstance(hint, type) and isinstance(value, hint))


def _words(hint: object) -> str:
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    names = ["null" if each is NoneType else getattr(each, "__name__", str(each)) for each in kinds]
    return " or ".join(names)
