"""Options of one part of the simulator, declared as fields of a frozen dataclass.

    @dataclass(frozen=True, kw_only=True)
    class ExtentOptions:
        fit: str = option("The hole that a reservation takes.", default="first", allowed=FITS)

    class Contiguous(Allocator):
        declares: ClassVar[type] = ExtentOptions

The command line, the keywords of `kvsim.simulate`, `config.json`, sweeps and the tables of the documents
follow from these fields (sim/parts.py). An option that no chosen part declares is refused with one sentence.
"""

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Option(NamedTuple):
    """The properties of an option besides its name, type and default."""

    help: str
    """a sentence for the command line"""
    panel: str = ""
    """the group of options in `--help`; "": that of its part"""
    value: str = ""
    """placeholder for the value, with its unit: `S` for seconds, `N` for a count, `NAME|FILE`"""
    allowed: tuple[Any, ...] = ()
    """the only values, if there are few"""
    least: float | None = None
    """the smallest value"""
    most: float | None = None
    """the largest value"""
    above: float | None = None
    """a number below all values"""
    below: float | None = None
    """a number above all values"""
    shown: str = ""
    """what the default means, if None stands for a value that depends on other choices"""
    doc: str = ""
    """text for the documents, in markdown; "": `help`"""
    short: str = ""
    """the name on the command line if the full one is too long to show; both are accepted"""
    also: tuple[str, ...] = ()
    """further names on the command line, such as `-q`"""
    hidden: bool = False
    """whether `--help` leaves it out"""
    repeats: bool = False
    """whether it may be given several times: texts, joined by spaces"""
    commas: bool = False
    """whether a value may contain commas, so that `;` separates the values of a sweep"""


def option(
    help: str,
    *,
    default: Any,  # noqa: ANN401 - of the field's type
    panel: str = "",
    value: str = "",
    allowed: tuple[Any, ...] = (),
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    shown: str = "",
    doc: str = "",
    short: str = "",
    also: tuple[str, ...] = (),
    hidden: bool = False,
    repeats: bool = False,
    commas: bool = False,
) -> Any:  # noqa: ANN401
    """Declare a field of a dataclass as an option, see `Option`."""
    value = value or "|".join(map(str, allowed))
    limits = (least, most, above, below)
    about = Option(help, panel, value, allowed, *limits, shown, doc, short, also, hidden, repeats, commas)
    return field(default=default, metadata={"option": about})


@dataclass(frozen=True, kw_only=True)
class NoOptions:
    """For a part that has no options of its own."""


def declared_by(kind: type) -> list[str]:
    """The names of the options that a dataclass declares."""
    return [each.name for each in fields(kind) if "option" in each.metadata]
