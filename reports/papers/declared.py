"""The data files of a paper: the systems compared, the runs, the published values.

A cell is merged from tables; later ones override earlier ones key by key:

    paper [cell] < [models.X] < [workloads.X] < [systems.X] < figure [cell] < panel cell < panel system cell

An open choice is an alternative for something the paper leaves open: it changes every cell matching `when`.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from kvsim.sim.errors import KvsimError, unknown

Table = dict[str, Any]


@dataclass(frozen=True)
class Choice:
    """Something the paper leaves open: the chosen answer, and another one whose influence is measured."""

    name: str
    chosen: str
    other: str
    figures: Sequence[str]
    set: Table
    when: Table = field(default_factory=dict)

    def changed(self, cell: Table) -> Table | None:
        """The cell under the other answer; None if that makes no difference."""
        if any(not _matches(cell, path, value) for path, value in self.when.items()):
            return None
        other = cell
        for path, value in self.set.items():
            *tables, last = path.split(".")
            change: Any = {last: value}
            for table in reversed(tables):
                change = {table: change}
            other = merged(other, change)
        return other


@dataclass(frozen=True)
class Figure:
    """One figure: the contents of its file."""

    number: str
    title: str
    reads: str
    settings: Table
    panels: Mapping[str, Table]
    checks: Sequence[Table]
    notes: Sequence[str]


@dataclass(frozen=True)
class Paper:
    """One paper: the contents of `paper.toml`, and its figures by number."""

    name: str
    title: str
    citation: str
    tables: Table
    choices: Sequence[Choice]
    claims: Sequence[Table]
    figures: Mapping[str, Figure]

    def cell(self, figure: Figure, panel: Table, system: str) -> Table:
        """The settings of one system in one panel."""
        tables, own = self.tables, panel["systems"][system]
        found: Table = {}
        for part in (
            tables["cell"],
            tables["models"][panel["model"]],
            tables["workloads"][panel["workload"]],
            tables["systems"][system],
            figure.settings.get("cell", {}),
            panel.get("cell", {}),
            own.get("cell", {}),
        ):
            found = merged(found, part)
        samples, work = found.pop("beams_are_samples", False), found["workload"]
        if samples and "beam_width" in work:
            work["n"] = work.pop("beam_width")
            work.pop("beam_process", None)
            found["beams_are_samples"] = True
        return found


def shelf() -> Traversable:
    """The folder of the papers: each has its own folder, with a `paper.toml` and a file per figure."""
    return resources.files("kvsim.reports.papers")


def paper_names() -> list[str]:
    """The names of the available papers."""
    return sorted(entry.name for entry in shelf().iterdir() if entry.joinpath("paper.toml").is_file())


def read_paper(name: str) -> Paper:
    """A paper from all its files.

    Raises
    ------
    KvsimError
        If there is no such paper.
    """
    if name not in paper_names():
        raise unknown("paper", name, paper_names())
    folder = shelf().joinpath(name)
    tables = {
        entry.name.removesuffix(".toml"): tomllib.loads(entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    }
    paper = tables.pop("paper")
    figures = {table["number"]: _figure(table) for table in tables.values()}
    return Paper(
        name=name,
        title=paper["title"],
        citation=paper["citation"],
        tables=paper,
        choices=[Choice(**choice) for choice in paper.get("choices", [])],
        claims=paper.get("claims", []),
        figures={number: figures[number] for number in sorted(figures, key=_order)},
    )


def chosen_figures(paper: Paper, text: str | None) -> list[Figure]:
    """The figures in a list such as `2,12,19a`; all of them if it is None."""
    if text is None:
        return list(paper.figures.values())
    numbers = [number.strip() for number in text.split(",")]
    for number in numbers:
        if number not in paper.figures:
            raise unknown("figure", number, list(paper.figures))
    if len(set(numbers)) < len(numbers):
        raise KvsimError(f"figure must name each figure once, got {text}")
    return [paper.figures[number] for number in numbers]


def traces_of(paper: Paper, figure: Figure) -> dict[str, list[str]]:
    """The traces that each panel of a figure reads."""
    cells = {
        name: [paper.cell(figure, panel, system) for system in panel["systems"]]
        for name, panel in figure.panels.items()
    }
    return {
        name: [cell["arguments"]["trace"] for cell in own if "trace" in cell.get("arguments", {})]
        for name, own in cells.items()
    }


def merged(one: Table, other: Table) -> Table:
    """A new table: `one` with the keys of `other` overriding its own, recursively."""
    found = dict(one)
    for key, value in other.items():
        old = found.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        found[key] = merged(old, value) if both else (dict(value) if isinstance(value, dict) else value)
    return found


def _figure(table: Table) -> Figure:
    settings = {key: table[key] for key in table if key not in ("panels", "checks", "notes")}
    panels = {panel["name"]: panel for panel in table["panels"]}
    own = {name: table[name] for name in ("number", "title", "reads", "checks")}
    return Figure(**own, settings=settings, panels=panels, notes=table.get("notes", []))


def _matches(cell: Table, path: str, value: object) -> bool:
    """Whether the cell has one of these values at the path."""
    found: Any = cell
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found in value if isinstance(value, list) else found == value


def _order(number: str) -> tuple[int, str]:
    digits = number.rstrip("abcdefgh")
    return int(digits), number[len(digits) :]
