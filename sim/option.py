"""One description per option, from which everything else about it is generated.

    class Scenario:
        block_size: int | None = option("Tokens of a KV block.", panel="Memory", default=None, shown="16")

The command line (cli.py), the tables of docs/commands.md (reports/options.py), the keywords of
`kvsim.simulate`, `config.json` and `--config` all read the same fields. A new option is one new field.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from inspect import signature
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from kvsim.allocators.option import Option, declared_by, option
from kvsim.sim.errors import KvsimError, unknown

__all__ = [
    "Named",
    "Option",
    "check_kinds",
    "checked_names",
    "listed",
    "numpydoc",
    "option",
    "options_of",
    "taken",
]

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Named:
    """An option with the description of its field; `type` is that of a value on the command line."""

    name: str
    type: type
    optional: bool
    default: Any
    about: Option

    @property
    def flag(self) -> str:
        """`--block-size`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def semicolons(self) -> bool:
        """Whether `;`, not a comma, separates its values in a sweep."""
        return self.about.repeats or self.about.commas

    @property
    def in_words(self) -> str:
        """The default, as shown to users."""
        return self.about.shown or (
            "" if self.default is None or self.default is False else str(self.default)
        )


_known: dict[type, tuple[Named, ...]] = {}
"""Caches options, as reading the annotations of a class takes longer than many checks."""


def options_of(described: type) -> tuple[Named, ...]:
    """The options of a dataclass, in order."""
    known = _known.get(described)
    if known is None:
        known = _known[described] = tuple(_declared(described))
    return known


def _declared(described: type) -> Iterator[Named]:
    hints = get_type_hints(described)
    for each in fields(described):
        about = each.metadata.get("option")
        if about is None:
            continue
        kinds = get_args(hints[each.name]) or (hints[each.name],)
        plain = next(kind for kind in kinds if kind in (bool, int, float, str, Path))
        default = None if each.default is MISSING else each.default
        yield Named(each.name, plain, type(None) in kinds, default, about)


def checked_names(described: type, given: Iterable[str]) -> None:
    """Raise KvsimError for a name that is not an option; suggests the nearest option."""
    known = [each.name for each in options_of(described)]
    for name in given:
        if name not in known:
            raise unknown("option", name, known)


def check_allowed(chosen: object) -> None:
    """Raise KvsimError if an option has a value that is not allowed."""
    for each in options_of(type(chosen)):
        value = getattr(chosen, each.name)
        if value is not None:
            _check_value(each.name, each.about, value)


def _check_value(name: str, about: Option, value: Any) -> None:  # noqa: ANN401 - of the option's type
    if about.allowed and value not in about.allowed:
        raise KvsimError(f"{name} must be one of {', '.join(map(str, about.allowed))}, got {value!r}")
    limits = [
        (f"at least {about.least}", about.least is None or value >= about.least),
        (f"at most {about.most}", about.most is None or value <= about.most),
        (f"above {about.above}", about.above is None or value > about.above),
        (f"below {about.below}", about.below is None or value < about.below),
    ]
    if not all(held for _, held in limits):
        said = " and ".join(words for words, _ in limits if not words.endswith("None"))
        raise KvsimError(f"{name} must be {said}, got {value!r}")


def check_kinds(given: Mapping[str, object], kinds: Mapping[str, Any]) -> None:
    """Raise KvsimError for a value of the wrong type.

    Any integral number counts as an int, any real number as a float.
    """
    for name, value in given.items():
        hint = kinds[name]
        union = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        allowed = [get_origin(kind) or kind for kind in union]
        wider = tuple({int: Integral, float: Real}.get(kind, kind) for kind in allowed)
        if not isinstance(value, wider):
            said = " or ".join("None" if kind is type(None) else kind.__name__ for kind in allowed)
            raise KvsimError(f"{name} must be {said}, got {type(value).__name__}")


def plain_number(value: object) -> object:
    """A number of another library as Python's own; anything else unchanged."""
    if isinstance(value, int | float) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def checked(function: Callable[P, R], but: Collection[str] = ()) -> Callable[P, R]:
    """Make a function raise KvsimError for an argument whose type does not match its annotation.

    The function itself checks the arguments in `but`; options (`**options`) are checked where they are known.
    """
    asked = signature(function)
    named = [each for each in asked.parameters.values() if each.kind != each.VAR_KEYWORD]
    kinds = {each.name: each.annotation for each in named if each.name not in but}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = asked.bind(*args, **kwargs)
        for name, value in given.arguments.items():
            given.arguments[name] = plain_number(value)
        check_kinds({name: value for name, value in given.arguments.items() if name in kinds}, kinds)
        return function(*given.args, **given.kwargs)

    return call


def taken(kind: type[T], given: Mapping[str, object]) -> T:
    """The options of a part with the given values; KvsimError for a value that is not allowed."""
    own = {name: given[name] for name in declared_by(kind) if given.get(name) is not None}
    if own:
        check_kinds(own, get_type_hints(kind))
    try:
        chosen = kind(**own)
    except ValueError as error:
        raise KvsimError(str(error)) from error
    check_allowed(chosen)
    return chosen


def listed(text: str) -> list[str]:
    """Split a text at its commas, except inside brackets, braces or quotes (JSON)."""
    parts, depth, quoted, start = [], 0, False, 0
    for at, letter in enumerate(text):
        if letter == '"' and depth:
            quoted = not quoted
        elif not quoted and letter in "[{":
            depth += 1
        elif not quoted and letter in "]}":
            depth -= 1
        elif letter == "," and depth <= 0 and not quoted:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def numpydoc(described: type) -> str:
    """The options as the `Parameters` of a docstring: name, type, default and help."""
    lines = []
    for each in options_of(described):
        kind = " or ".join(filter(None, (each.type.__name__, "None" if each.optional else "")))
        default = f", default {each.in_words}" if each.in_words else ""
        lines += [f"{each.name} : {kind}{default}", f"    {each.about.help}"]
    return "\n".join(lines)
