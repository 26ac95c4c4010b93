"""One description of each option, from which all that names it is made.

    class Scenario:
        block_size: int | None = option("Tokens of a KV block.", panel="Memory", default=None, shown="16")

The command line (cli.py), the tables of docs/commands.md (reports/options.py), the keywords of
`kvsim.simulate`, `config.json` and `--config` read the same fields. So a new option is one field.
"""

from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from kvsim.sim.errors import KvsimError, unknown

PANELS = (
    *("Replay", "Workload", "Arrivals", "Engine", "Memory", "Model and GPU", "Fleet", "Goals", "Sweep"),
    "Search",
    "Output",
)
"""Groups of options, in the order in which they are shown."""

T = TypeVar("T")


@dataclass(frozen=True)
class Option:
    """What is known of an option beside its name, its type and its default.

    Attributes
    ----------
    help : str
        A sentence for the command line.
    panel : str
        One of PANELS.
    value : str
        What stands for the value, with its unit: `S` for seconds, `N` for a count, `NAME|FILE`.
    allowed : tuple of str
        The only values, where there are few.
    shown : str
        What the default means, where None stands for one that depends on other choices.
    doc : str
        What the docs say, in markdown; empty: `help`.
    short : str
        The name on the command line where the whole one is too long to be shown; both are taken.
    also : tuple of str
        Further names on the command line, such as `-q`.
    hidden : bool
        Whether `--help` leaves it out.
    """

    help: str
    panel: str
    value: str = ""
    allowed: tuple[str, ...] = ()
    shown: str = ""
    doc: str = ""
    short: str = ""
    also: tuple[str, ...] = ()
    hidden: bool = False


def option(
    help: str,
    *,
    panel: str,
    default: Any,  # noqa: ANN401 - of the field's type
    value: str = "",
    allowed: tuple[str, ...] = (),
    shown: str = "",
    doc: str = "",
    short: str = "",
    also: tuple[str, ...] = (),
    hidden: bool = False,
) -> Any:  # noqa: ANN401
    """Declare a field of a dataclass as an option, see `Option`."""
    value = value or "|".join(allowed)
    about = Option(help, panel, value, allowed, shown, doc, short, also, hidden)
    return field(default=default, metadata={"option": about})


@dataclass(frozen=True)
class Named:
    """An option with what its field says: `type` is that of a value on the command line."""

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
    def in_words(self) -> str:
        """The default as a reader sees it."""
        return self.about.shown or (
            "" if self.default is None or self.default is False else str(self.default)
        )


def options_of(described: type) -> Iterator[Named]:
    """The options of a dataclass, in their order."""
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
    """Raise KvsimError for a name that is no option, with the nearest one that is."""
    known = [each.name for each in options_of(described)]
    for name in given:
        if name not in known:
            raise unknown("option", name, known)


def check_allowed(chosen: object) -> None:
    """Raise KvsimError where an option has a value that is not among the few allowed ones."""
    for each in options_of(type(chosen)):
        value = getattr(chosen, each.name)
        if each.about.allowed and value is not None and value not in each.about.allowed:
            raise KvsimError(f"{each.name} must be one of {', '.join(each.about.allowed)}, got {value!r}")


def numpydoc(described: type) -> str:
    """The options as the `Parameters` of a docstring: name, type, default, and what it says."""
    lines = []
    for each in options_of(described):
        kind = " or ".join(filter(None, (each.type.__name__, "None" if each.optional else "")))
        default = f", default {each.in_words}" if each.in_words else ""
        lines += [f"{each.name} : {kind}{default}", f"    {each.about.help}"]
    return "\n".join(lines)
