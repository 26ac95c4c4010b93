"""The runs of a sweep: a grid of settings, some of them paired, for each of several cases.

    request_rate = "1:8:1"        # all combinations of the lists ...
    allocator = ["contiguous", "paged"]
    gpu = ["l40s", "h100"]
    tensor_parallel_size = [2, 1]
    zip = ["gpu", "tensor_parallel_size"]   # ... but these go together, first with first; true: all lists
    seeds = 3

    [[case]]                      # optional: the grid once per case, with lists of its own
    name = "chat"
    trace = "sharegpt"

Such a file, or command-line options, become a Plan.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from kvsim.reports.rundir.formats import plain, write_json
from kvsim.reports.sweeps.values import values_of
from kvsim.sim import __version__
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.files.reading import text_of, understood
from kvsim.sim.files.whole_file import whole_file
from kvsim.sim.option import Named, options_of
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.parts import KINDS, known_options

SWEPT: dict[str, Named] = {each.name: each for kind in (Traffic, Scenario) for each in options_of(kind)}
"""The options that a sweep may vary, except those of one scheduler or allocator."""

BESIDE = ("seeds", "slo", "gpu_price", "host_price", "zip", "case")
"""Further keys of a file."""

MOST_RUNS = 1_000_000


@dataclass(frozen=True)
class Point:
    """The settings of runs that differ only in the seed; unlisted settings have their defaults."""

    case: str | None
    settings: Mapping[str, Any]

    def label(self, names: Sequence[str]) -> str:
        """The label for a message: the case, and the settings of these names."""
        said = [f"{name}={shown(setting(self, name))}" for name in names if name != "case"]
        return " ".join([*([self.case] if self.case else []), *said]) or "all settings"


def labels(points: Sequence[Point], among: Sequence[Point], names: Sequence[str]) -> list[str]:
    """Describe some points of a sweep, case by case, by what distinguishes them from the others.

    `tensor_parallel_size=1,2` for all points with these values; if that is ambiguous, each alone.
    """
    found: list[str] = []
    for case in dict.fromkeys(point.case for point in points):
        some, whole = ([each for each in group if each.case == case] for group in (points, among))
        differ = [name for name in names if name != "case" and len(_values(whole, name)) > 1]
        only = {name: _values(some, name) for name in differ if _values(some, name) != _values(whole, name)}
        alike = [each for each in whole if all(_value(each, name) in only[name] for name in only)]
        if len(alike) > len(some):
            found += [each.label(differ) for each in some]
            continue
        said = [f"{name}={','.join(values)}" for name, values in only.items()]
        found.append(" ".join([*([case] if case else []), *said]) or "all settings")
    return found


def _values(points: Sequence[Point], name: str) -> list[str]:
    return list(dict.fromkeys(_value(point, name) for point in points))


def _value(point: Point, name: str) -> str:
    return str(shown(setting(point, name)))


@dataclass(frozen=True)
class Plan:
    """A sweep.

    Attributes
    ----------
    settings : mapping
        Option -> its values.
    zipped : tuple of str
        Options whose values are paired.
    cases : sequence of mappings
        Settings of each case, which override `settings`; `name` names it. None: one unnamed case.
    seeds : int
        Runs of each point.
    slo, gpu_price, host_price : str, str, float or None
        See sim/options/goals.py.
    """

    settings: Mapping[str, Sequence[Any]]
    zipped: tuple[str, ...] = ()
    cases: Sequence[Mapping[str, Any]] = field(default=())
    seeds: int = 1
    slo: str | None = None
    gpu_price: str | None = None
    host_price: float | None = None

    def points(self) -> list[Point]:
        """All points, in order; KvsimError if paired lists have different lengths."""
        found = [point for case in self.cases or ({},) for point in self._of_case(case)]
        if len(found) * self.seeds > MOST_RUNS:
            raise KvsimError(f"a sweep must have at most {MOST_RUNS:,} runs, got {len(found) * self.seeds:,}")
        return found

    def _of_case(self, case: Mapping[str, Any]) -> Iterator[Point]:
        lists = {**self.settings, **{name: value for name, value in case.items() if name != "name"}}
        together = [name for name in self.zipped if len(lists.get(name, ())) > 1]
        sizes = {name: len(lists[name]) for name in together}
        if len(set(sizes.values())) > 1:
            said = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise KvsimError(f"zip needs lists of one length, got {said}")
        axes: list[list[dict[str, Any]]] = []
        for name, values in lists.items():
            if name not in together:
                axes.append([{name: value} for value in values])
            elif name == together[0]:
                rows = zip(*(lists[each] for each in together), strict=True)
                axes.append([dict(zip(together, row, strict=True)) for row in rows])
        for parts in product(*axes):
            yield Point(case.get("name"), {name: value for part in parts for name, value in part.items()})


def plan_of(given: Mapping[str, Any]) -> Plan:
    """Build the plan from a file, a command line or a call, by option names with underscores.

    Raises
    ------
    KvsimError
        An unknown name, or an impossible value.
    """
    given = {name.replace("-", "_"): value for name, value in given.items() if value is not None}
    settings = _settings({name: value for name, value in given.items() if name not in BESIDE})
    cases = given.get("case", [])
    if not isinstance(cases, Sequence) or not all(isinstance(case, Mapping) for case in cases):
        raise KvsimError("case must be tables, each headed [[case]]")
    named = [
        {"name": str(case.get("name", place + 1))}
        | _settings({key.replace("-", "_"): value for key, value in case.items() if key != "name"})
        for place, case in enumerate(cases)
    ]
    seeds = given.get("seeds", 1)
    if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
        raise KvsimError(f"seeds must be a whole number of at least 1, got {seeds!r}")
    price, host = given.get("gpu_price"), given.get("host_price")
    try:
        host_price = None if host is None else float(host)
    except (TypeError, ValueError):
        raise KvsimError(f"host_price must be a number per GiB and hour, got {host!r}") from None
    return Plan(
        settings=settings,
        zipped=_zipped(given.get("zip"), [settings, *named]),
        cases=named,
        seeds=seeds,
        slo=given.get("slo"),
        gpu_price=None if price is None else str(price),
        host_price=host_price,
    )


def read_plan(path: Path) -> dict[str, Any]:
    """The contents of a file, for `plan_of`."""
    with understood(f"sweep {path}"):
        try:
            return tomllib.loads(text_of(path, f"sweep {path}"))
        except tomllib.TOMLDecodeError as error:
            raise KvsimError(f"sweep {path} is no TOML: {error}") from error


def _settings(given: Mapping[str, Any]) -> dict[str, list[Any]]:
    found = {}
    known: Mapping[str, Named] = SWEPT
    if given.keys() - known:
        parts = [
            (kind, each) for kind in KINDS for each in values_of(SWEPT[kind], given.get(kind, "default"))
        ]
        known = {**known_options(parts), **known}
    for name, value in given.items():
        if name not in known:
            raise unknown("option", name, [*known, *BESIDE])
        found[name] = values_of(known[name], value)
    if len(found.get("seed", ())) > 1:
        raise KvsimError("seed must be one number, the first: seeds says how many")
    return found


def _zipped(given: object, lists: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    known = list(dict.fromkeys(name for each in lists for name in each if name != "name"))
    if given in (None, False):
        return ()
    if given is True or given == "all":
        return tuple(known)
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, Sequence):
        raise KvsimError(f"zip must name options, or be true for all, got {given!r}")
    names = [str(name).strip().removeprefix("--").replace("-", "_") for name in names]
    for name in names:
        if name not in known:
            raise KvsimError(f"zip must name options that the sweep sets ({', '.join(known)}), got {name}")
    return tuple(names)


def shown(value: object) -> str | int | float | bool | None:
    """A value as it appears in a table: classes and descriptions by name."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, type):
        return value.__name__
    return str(getattr(value, "name", value))


def varying(points: Sequence[Point]) -> list[str]:
    """The settings in which points differ; unset ones have their default."""
    names = dict.fromkeys(name for point in points for name in point.settings)
    return [name for name in names if len({repr(setting(point, name)) for point in points}) > 1]


def setting(point: Point, name: str) -> Any:  # noqa: ANN401 - of any option
    """The value of an option at a point, or its default."""
    if name in point.settings:
        return point.settings[name]
    named = _option(name)
    return named.default if named else None


def _option(name: str) -> Named | None:
    """The option of that name; None if there is none, or it belongs to a user's class."""
    if name in SWEPT or name in BESIDE:
        return SWEPT.get(name)
    return known_options().get(name)


def write_plan(plan: Plan, path: Path) -> None:
    """Write the plan, with every list in full and this version."""
    asked = {
        "kvsim": __version__,
        "settings": {name: [shown(value) for value in values] for name, values in plan.settings.items()},
        "zip": list(plan.zipped),
        "case": [
            {
                name: value if name == "name" else [shown(each) for each in value]
                for name, value in case.items()
            }
            for case in plan.cases
        ],
        "seeds": plan.seeds,
        "slo": plan.slo,
        "gpu_price": plan.gpu_price,
        **({} if plan.host_price is None else {"host_price": plan.host_price}),
    }
    with whole_file(path) as part:
        write_json(plain(asked), part)
