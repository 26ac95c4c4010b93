"""A request's life in the terminal: a line per event, a bar, and where its time went.

A cell of the bar shows the state that took most of it. Times below it are rounded but sum to the E2E shown.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from kvsim.reports.fitting import ruled_table
from kvsim.reports.lives.lines import Line
from kvsim.reports.lives.spans import STATES as STATE_NAMES
from kvsim.reports.lives.story import Part, Story
from kvsim.reports.lives.words import STATES, Look, reason_name
from kvsim.reports.palette import seconds
from kvsim.sim.counted import several
from kvsim.sim.workload import PS_PER_S

_WIDEST = 110
_MOST_LINES, _FIRST_LINES = 36, 20
_FIGURES = 5
_QUEUE = ("step", "behind", "head", "loaded")
_LOST = ("preempted", "recompute")


@dataclass(frozen=True, repr=False)
class Told(Story):
    """A story that prints itself as `sim explain` does."""

    def __repr__(self) -> str:
        return f"<life of request {self.request} in {self.label}: print it, or see its lines and parts>"

    def __str__(self) -> str:
        console = Console(width=100, file=StringIO(), highlight=False)
        console.print(story_view(self))
        return console.file.getvalue()  # type: ignore[attr-defined]


def story_view(story: Story) -> RenderableType:
    """One request in one run."""
    decimals = _decimals(story.e2e_ps)
    head = _asked(story, _title(story, story.label))
    parts: list[RenderableType] = [head, "", _timeline(story, decimals)]
    if story.e2e_ps:
        parts += ["", Bar(story, story.e2e_ps), "", _division(story, decimals)]
    if story.passed_over:
        parts += ["", Text(story.passed_over)]
    if story.answers:
        parts += ["", _answers(story, decimals)]
    return Group(*parts)


def stories_view(stories: Sequence[Story]) -> RenderableType:
    """One request in several runs: bars on one scale, times side by side, one sentence per run."""
    longest = max(story.e2e_ps for story in stories)
    width = max(len(story.label) for story in stories)
    parts: list[RenderableType] = [_asked(stories[0], _title(stories[0], f"{len(stories)} runs")), ""]
    for story in stories:
        grid = Table.grid(padding=(0, 2), expand=False)
        grid.add_column(width=width)
        grid.add_row(story.label, Bar(story, longest, legend=False, margin=width + 2))
        parts.append(grid)
    shown = [name for name in STATE_NAMES if any(part.state == name for s in stories for part in s.parts)]
    legend = [Text.assemble(Mark(STATES[name]), f" {STATES[name].name}") for name in shown]
    parts += [Columns(legend, padding=(0, 3)), "", _side_by_side(stories), ""]
    parts += [Text(_sentence(story)) for story in stories]
    return Group(*parts)


DRAFTS = ("draft_tokens", "accepted_tokens", "acceptance_length")
"""Request columns that are combined into one phrase."""


class Mark(Text):
    """The glyph of a state in its colour."""

    def __init__(self, look: Look) -> None:
        super().__init__(look.glyph, style=look.colour)


def _title(story: Story, where: str) -> str:
    return f"request {story.request} of {where}" + (f", {story.how}" if story.how else "")


def _asked(story: Story, title: str) -> RenderableType:
    facts = story.facts
    prompt, answer = (several(facts[name], "token") for name in ("prompt_tokens", "output_tokens"))
    asked = f"prompt {prompt}, answer {answer}"
    if len(story.answers) > 1:
        asked += f" in {len(story.answers)} answers"
    told = {name: value for name, value in story.labels.items() if value is not None}
    drafted, right, length = (told.pop(name, 0) for name in DRAFTS)
    labels = [f"{name} {value}" for name, value in told.items()]
    if drafted:
        labels.append(f"{right:,} of {drafted:,} drafts right, {length:.2f} tokens a verification")
    return Group(Text(title, style="bold"), Text(", ".join([asked, str(facts["status"]), *labels])))


def _timeline(story: Story, decimals: int) -> Table:
    table = ruled_table("after")
    table.columns[0].justify = "right"
    table.add_column("at (s)", justify="right", style="dim", no_wrap=True)
    table.add_column("what happened", overflow="fold")
    for line in _shortened(story.lines):
        if isinstance(line, int):
            table.add_row("", "", Text(f"... {line:,} more lines, see --json", style="dim"))
            continue
        after = _shown(line.time_ps - story.arrival_ps, decimals)
        table.add_row(
            after, _shown(line.time_ps, decimals), Text(line.text, style=_STYLES.get(line.event, ""))
        )
    return table


_STYLES = {"preempt": STATES["preempted"].colour, "swap_out": STATES["swapped"].colour, "reject": "red"}
_STYLES |= {"finish": "bold"}


def _shortened(lines: Sequence[Line]) -> Iterator[Line | int]:
    """The lines; if there are very many, the first and last ones, and the number left out between them."""
    if len(lines) <= _MOST_LINES:
        yield from lines
        return
    yield from lines[:_FIRST_LINES]
    last = _MOST_LINES - _FIRST_LINES
    yield len(lines) - _FIRST_LINES - last
    yield from lines[-last:]


@dataclass(frozen=True)
class Bar:
    """The states of a life over time, as a bar whose full width is `scale_ps`."""

    story: Story
    scale_ps: int
    legend: bool = True
    margin: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The bar, with the times of its ends below."""
        width = min(options.max_width, _WIDEST - self.margin)
        plain = console.color_system is None or console.no_color
        bar = Text()
        for state in self.cells(width):
            look = STATES[state]
            glyph = look.ascii if options.ascii_only else look.glyph if plain else "█"
            bar.append(glyph, look.colour)
        yield bar
        if self.legend:
            end = f"{_shown(self.story.e2e_ps, _decimals(self.story.e2e_ps))} s"
            yield Text("0" + end.rjust(max(len(bar), len(end) + 2) - 1), style="dim")

    def cells(self, width: int) -> list[str]:
        """The state of each cell: the one that takes most of its time."""
        begin, cells = self.story.arrival_ps, []
        used = -(-self.story.e2e_ps * width // self.scale_ps) if self.scale_ps else 0
        for cell in range(used):
            start, end = (begin + self.scale_ps * edge // width for edge in (cell, cell + 1))
            shares = [0] * len(STATE_NAMES)
            for span in self.story.spans:
                shares[span.state] += max(0, min(end, span.end_ps) - max(start, span.start_ps))
            cells.append(STATE_NAMES[shares.index(max(shares))])
        return cells


def _division(story: Story, decimals: int) -> Table:
    """Where the time went; the times shown sum to the total shown."""
    table = ruled_table("where its time went", "s", "%")
    for part, text in zip(story.parts, rounded(story.parts, decimals), strict=True):
        share = f"{100 * part.time_ps / story.e2e_ps:.1f}"
        table.add_row(Text.assemble(Mark(STATES[part.state]), f" {_named(part)}"), text, share)
    table.columns[0].no_wrap = False
    table.rows[-1].end_section = True
    name = "E2E" if story.facts.get("e2e_s") is not None else "until it was rejected"
    table.add_row(Text(name, style="bold"), _shown(story.e2e_ps, decimals), "100")
    return table


def _named(part: Part) -> str:
    return STATES[part.state].name + (f": {reason_name(part.reason)}" if part.reason else "")


def rounded(parts: Sequence[Part], decimals: int) -> list[str]:
    """Times in seconds, rounded up or down so that they sum to the rounded total."""
    unit = PS_PER_S // 10**decimals
    whole = round(sum(part.time_ps for part in parts) / unit)
    floors = [part.time_ps // unit for part in parts]
    rests = sorted(range(len(parts)), key=lambda place: -(parts[place].time_ps % unit))
    for place in rests[: whole - sum(floors)]:
        floors[place] += 1
    return [_shown(units * unit, decimals) for units in floors]


def _answers(story: Story, decimals: int) -> Table:
    columns = _columns([answer.parts for answer in story.answers])
    table = ruled_table("answer", "ended at (s)", *columns)
    for answer in story.answers:
        mark = " *" if answer.sample == story.sample else "  "
        end = "rejected" if answer.rejected else _shown(answer.end_ps, decimals)
        table.add_row(f"sample {answer.sample}", end + mark, *_times(answer.parts, columns))
    told = Table.grid()
    told.add_row(table)
    told.add_row(Text("* the last to end: described above", style="dim"))
    return told


def _side_by_side(stories: Sequence[Story]) -> Table:
    columns = _columns([story.parts for story in stories])
    table = ruled_table("", "E2E", *columns)
    for story in stories:
        table.add_row(story.label, seconds(story.e2e_ps / PS_PER_S), *_times(story.parts, columns))
    return table


_COLUMNS = {
    "waited": _QUEUE,
    "loading": ("loading",),
    "prefill": ("prefill",),
    "decode": ("decode",),
    "preempted": _LOST,
    "swapped": ("swapped",),
}
"""Heading -> states; "preempted" includes recomputing."""


def _columns(lives: Sequence[Sequence[Part]]) -> list[str]:
    """The headings; "loading" only if anything was loaded."""
    loads = any(part.state == "loading" for parts in lives for part in parts)
    return [name for name in _COLUMNS if loads or name != "loading"]


def _times(parts: Sequence[Part], columns: Sequence[str]) -> Iterator[str]:
    for name in columns:
        found = sum(part.time_ps for part in parts if part.state in _COLUMNS[name])
        yield seconds(found / PS_PER_S) if found else "-"


def _sentence(story: Story) -> str:
    """How long a request waited in a run, and why."""
    waits = [part for part in story.parts if part.state in _QUEUE]
    waited = sum(part.time_ps for part in waits)
    end = "rejected" if story.facts["status"] == "rejected" else f"E2E {seconds(story.e2e_ps / PS_PER_S)}"
    if not waited:
        return f"{story.label}: did not wait; {end}"
    each = [f"{seconds(part.time_ps / PS_PER_S)} {_WAITS[part.state]}" for part in waits]
    reasons = [reason_name(part.reason) for part in waits if part.reason]
    why = f" ({', '.join(reasons)})" if reasons else ""
    told = each[0] if len(each) == 1 else f"{seconds(waited / PS_PER_S)}, {', '.join(each)}"
    return f"{story.label}: waited {told}{why}; {end}"


_WAITS = {"step": "for the step under way", "behind": "behind others", "head": "at the head of the queue"}
_WAITS |= {"loaded": "after its load"}


def _decimals(whole_ps: int) -> int:
    """Decimals that give the total five significant figures, from one to six."""
    whole = whole_ps / PS_PER_S
    return min(max(_FIGURES - 1 - math.floor(math.log10(whole)), 1), 6) if whole else 3


def _shown(time_ps: int, decimals: int) -> str:
    return f"{time_ps / PS_PER_S:,.{decimals}f}"
