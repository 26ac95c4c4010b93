"""Read a sweep or a capacity search back from its directory, to draw and report it again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from kvsim.reports.rundir.formats import MOST, read_json
from kvsim.reports.sweeps.capacity_table import UNITS
from kvsim.reports.sweeps.plan import SWEPT
from kvsim.reports.sweeps.systems import LOADS
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.tables import read_table
from kvsim.sim.record.slo import Slo

ASKED, TABLE, ANSWER = "sweep.json", "table.parquet", "capacity.json"
TOLD = ("model", "gpu", "trace", "request_rate")
"""Settings that are told even if they have their defaults."""
LONGEST = 3_000
"""Most characters of text that are drawn."""
KINDS = {bool: "yes or no", int: "a whole number", float: "a number", str: "a text", NoneType: "nothing"}
"""What a table holds."""
NUMBERS, MAYBE_TEXT = (float, int, NoneType), (str, NoneType)
OF_FLEETS = {"fleet_price_per_hour": NUMBERS, "rough": (bool,)}
"""What the figure of priced fleets needs, where it is there."""


@dataclass(frozen=True)
class StoredSweep:
    """The table, a row per run or per system; `names` are the varied settings.

    `answer` is the output of a capacity search: `find`, `answer`, `assumed` and `labels`; None: a sweep.
    `common` are the settings that all runs share: model, GPU and traffic, and what was asked for.
    """

    path: Path
    rows: Sequence[Mapping[str, Any]]
    names: Sequence[str]
    slo: Slo | None
    answer: Mapping[str, Any] | None
    common: Mapping[str, Any] = field(default_factory=dict)


def is_sweep(directory: Path) -> bool:
    """Whether `sim sweep` or `sim capacity` wrote the directory."""
    return (directory / ASKED).is_file()


def read_sweep(directory: Path) -> StoredSweep:
    """Read a stored sweep or search; KvsimError if it is unfinished or damaged."""
    if not (directory / TABLE).is_file():
        raise KvsimError(
            f"{directory} is a sweep that is not done: {TABLE} is missing; run its command again"
        )
    answer = _answer(directory / ANSWER) if (directory / ANSWER).is_file() else None
    columns = _columns(answer)
    table = read_table(directory / TABLE, str(directory / TABLE), tuple(columns))
    names = [name for name in table.column_names[: table.column_names.index("status")] if name != "seed"]
    asked = read_json(directory / ASKED)
    limits = asked.get("slo")
    rows = table.num_rows
    if not rows or (answer is not None and len(answer["labels"]) != rows):
        raise KvsimError(f"{directory / TABLE} is damaged: it has {rows} rows")
    if answer is None and "limited_by" in table.column_names:
        raise KvsimError(
            f"{directory} lacks {ANSWER}: run its command again, which only writes what is missing"
        )
    slo = Slo.parse(limits) if isinstance(limits, str) else None
    found = table.to_pylist()
    _check(found, str(directory / TABLE), columns | OF_FLEETS)
    return StoredSweep(directory, found, names, slo, answer, _common(asked, names, answer))


def _common(
    asked: Mapping[str, Any], names: Sequence[str], answer: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The settings with one value in all cases; those that say most are there even if not asked for."""
    settings, cases = asked.get("settings"), asked.get("case")
    given = {n: v for n, v in settings.items() if isinstance(v, list)} if isinstance(settings, dict) else {}
    each_case = [case for case in cases if isinstance(case, dict)] if isinstance(cases, list) else []
    own = {name for case in each_case for name in case}
    told = [name for name in TOLD if answer is None or name not in LOADS]
    values = {**{name: [SWEPT[name].default] for name in told}, **given}
    apart = {*names, *own}
    return {
        name: each[0]
        for name, each in values.items()
        if len(each) == 1 and each[0] is not None and name not in apart
    }


def _columns(answer: Mapping[str, Any] | None) -> dict[str, tuple[type, ...]]:
    """The columns that figures and pages need, and the types of their values."""
    if answer is None:
        return {"status": (str,)}
    loads = (f"{UNITS[answer['find']]}_{each}" for each in ("per_gpu", "low", "high"))
    return {
        "status": (str,),
        "gpus": (int, NoneType),
        "limited_by": MAYBE_TEXT,
        "at_least": (bool,),
    } | dict.fromkeys(loads, NUMBERS)


def _check(rows: Sequence[Mapping[str, Any]], what: str, columns: Mapping[str, tuple[type, ...]]) -> None:
    """Check the type of every value, and that numbers can be drawn; else KvsimError."""
    for row in rows:
        for name, value in row.items():
            allowed = columns.get(name, tuple(KINDS))
            if type(value) not in allowed:
                kinds = ", ".join(KINDS[each] for each in allowed)
                raise KvsimError(f"{what} is damaged: column {name} must hold {kinds}, got {value!r}")
            unknown = name in columns and value != value  # noqa: PLR0124 - not a number
            if isinstance(value, int | float) and (abs(value) > MOST or unknown):
                raise KvsimError(f"{what} is damaged: column {name} must be at most {MOST:g}, got {value:g}")
        if "gpus" in columns and row["gpus"] is not None and row["gpus"] < 1:  # None: it did not fit
            raise KvsimError(f"{what} is damaged: column gpus must be at least 1, got {row['gpus']}")


def _answer(path: Path) -> dict[str, Any]:
    """The output of a search; KvsimError if it is damaged."""
    found = read_json(path)
    lists = [found.get(name) for name in ("assumed", "labels")]
    texts = [found.get("answer"), *(each for value in lists if isinstance(value, list) for each in value)]
    whole = str(found.get("find")) in UNITS and all(isinstance(value, list) for value in lists)
    if not (whole and all(isinstance(text, str) for text in texts) and sum(map(len, texts)) <= LONGEST):
        raise KvsimError(f"{path} is damaged: it must hold find, answer, assumed and labels")
    return found
