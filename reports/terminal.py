"""What a run and a comparison say in the terminal: tables that also read well without colour.

Every table fits in 80 columns; where the output is no terminal, rich leaves the colours out and the
ledger bar falls back on glyphs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from rich import box
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from kvsim.reports import clocks, palette
from kvsim.reports.goals import NUMBERS, goal, in_words
from kvsim.reports.goals import percent as percent_of_share
from kvsim.reports.headline import headline, verdict
from kvsim.reports.palette import KINDS, Summary, count, figures, number, seconds
from kvsim.reports.ranked import by_scheduler, different_clocks, ranked, rejections, schedulers
from kvsim.reports.waiting import (
    LATENCIES_GROW,
    SHORT_LIMITS,
    held_back,
    is_overloaded,
    overload,
    overloads,
    rounded_share,
    share,
)
from kvsim.sim.models.catalog import GIB

LATENCIES = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "itl_s": "between tokens",
    "e2e_s": "end to end",
    "normalized_s_per_token": "end to end per token",
    "queueing_s": "queueing",
}
POINTS = ("mean", "p50", "p90", "p95", "p99", "max")
_ASCII_GLYPHS = dict(zip(KINDS, "#r/x+i.", strict=True))
_ALIKE = 1.02  # ratios below this are no difference worth a word


def run_table(summary: Summary) -> RenderableType:
    """The report of one run: overload, headline, ledger bar, latencies, memory, engine, notes."""
    parts: list[RenderableType] = overload_lines([overload(summary)])
    parts += [Text(headline(summary), style="bold"), *goal_lines([summary]), ""]
    if any(palette.whole_run(summary).values()):
        parts += [LedgerBar(palette.whole_run(summary)), ""]
    if summary["requests"]["finished"]:
        parts += [_latency_table(summary), "", _memory_table(summary), ""]
    parts.append(_facts(summary))
    parts += [Text(f"note: {note}", style="yellow") for note in _warnings(summary)]
    return Group(*parts)


def compare_table(summaries: Sequence[Summary]) -> RenderableType:
    """Runs of one traffic side by side, a column each, the best of every row marked.

    Above them which are overloaded, below them a verdict, cost and notes.
    """
    parts: list[RenderableType] = first_lines([[summary] for summary in summaries])
    table = Ranking(summaries) if len(summaries) > MANY else Comparison(summaries)
    parts += [table, "", Text(verdict(summaries), style="bold"), ""]
    parts += clock_lines(summaries)
    return Group(*parts, *(Text(f"note: {note}", style="yellow") for note in notes_of_all(summaries)))


def overload_lines(lines: Sequence[str]) -> list[RenderableType]:
    """What is said first: a line per overload, and a blank one below them; nothing of empty lines."""
    said: list[RenderableType] = [Text(line, style="bold red") for line in lines if line]
    return [*said, ""] if said else []


def first_lines(systems: Sequence[Sequence[Summary]]) -> list[RenderableType]:
    """What is said first of systems beside each other: clocks that differ, what was rejected, overloads."""
    found = overload_lines([different_clocks(systems), rejections(systems), *overloads(systems)])
    differ = by_scheduler(systems)
    return [*found, *([Text(differ, style="bold"), ""] if differ else [])]


def goal_lines(summaries: Sequence[Summary]) -> list[RenderableType]:
    """Whether the goals of a run were met, with all of its seeds; nothing where it had none."""
    words = in_words(summaries)
    return [Text(words, style="bold")] if words else []


def clock_lines(summaries: Sequence[Summary]) -> list[RenderableType]:
    """Where the step times of a comparison come from, and how far they may be trusted."""
    whose: dict[str, dict[str, None]] = {}
    for summary in summaries:
        whose.setdefault(str(summary["cost"]["source"]), {})[str(summary["label"])] = None
    trust = clocks.beside([summary["cost"] for summary in summaries])
    if len(whose) == 1:
        lines = [f"clock: {next(iter(whose))}; {trust}"]
    else:
        lines = [
            *(f"clock of {', '.join(names)}: {source}" for source, names in whose.items()),
            f"clock: {trust}",
        ]
    return [Text(line, style="dim") for line in lines]


@dataclass(frozen=True)
class LedgerBar:
    """The memory as one bar of coloured blocks with its legend; without colour a glyph per kind."""

    percent: dict[str, float]
    widest: int = 80

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The bar as wide as the console, up to the widest."""
        width = min(options.max_width, self.widest)
        bar, legend = Text(), []
        for kind, cells in _cells(self.percent, width).items():
            look = KINDS[kind]
            glyph = _ASCII_GLYPHS[kind] if options.ascii_only else look.glyph
            coloured = console.color_system is not None and not console.no_color
            mark = "█" if coloured and not options.ascii_only else glyph
            bar.append(mark * cells, look.colour)
            if self.percent[kind] >= 0.05:
                legend.append(Text.assemble((mark, look.colour), f" {kind} {self.percent[kind]:.1f} %"))
        yield bar
        yield Columns(legend, padding=(0, 3))


@dataclass(frozen=True)
class Comparison:
    """Rows of numbers, a column per run; as many tables below each other as the width asks for."""

    summaries: Sequence[Summary]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The tables; a star marks the best of all runs, not only of its table."""
        rows = [(row, self.cells(row)) for row in _ROWS if not row.optional or self.occurs(row)]
        names = schedulers(self.systems)
        for chosen in self._side_by_side(rows, options.max_width):
            table = ruled_table("")
            for summary in self.summaries[chosen]:
                table.add_column(Text(str(summary["label"])), justify="right", overflow="fold")
            if names:
                table.add_row("scheduler", *(marked(name, best=False) for name in names[chosen]))
            for row, cells in rows:
                if row.begins_section:
                    table.add_section()
                table.add_row(row.name, *cells[chosen])
            yield table
        yield Text(f"* {self.starred}; memory: means of the whole run", style="dim")

    starred: ClassVar[str] = "best of its row"

    @property
    def systems(self) -> Sequence[Sequence[Summary]]:
        """Each with all of its seeds."""
        return [[summary] for summary in self.summaries]

    def may_win(self, row: "Row") -> list[bool]:
        """Which may have the row's star: those that are ranked; of finished requests, all on one clock."""
        return (
            ranked(self.systems)
            if not row.of_all
            else [not different_clocks(self.systems)] * len(self.summaries)
        )

    def occurs(self, row: "Row") -> bool:
        """Whether a row holds anything but zeros."""
        return any(row.value(summary) for summary in self.summaries)

    def cells(self, row: "Row") -> list[Text]:
        """A row's numbers; those that read like the best get a star, unless all read alike."""
        values, may_win = [row.value(summary) for summary in self.summaries], self.may_win(row)
        known = [value for value, may in zip(values, may_win, strict=True) if may and value is not None]
        texts = [row.text(value) for value in values]
        best = row.text(row.best(known)) if row.best and known and len(set(texts)) > 1 else None
        alone = sum(may_win) < 2
        return [
            marked(text, may and not alone and text == best) for text, may in zip(texts, may_win, strict=True)
        ]

    def _side_by_side(self, rows: Sequence[tuple["Row", Sequence[Text]]], width: int) -> Iterator[slice]:
        """The runs of each table: as many as fit the width, at least one."""
        between = 3  # blanks between columns
        names = max(len(row.name) for row, _ in rows)
        start, used = 0, names
        for index, summary in enumerate(self.summaries):
            wide = between + max(len(str(summary["label"])), *(len(cells[index]) for _, cells in rows))
            if used + wide > width and index > start:
                yield slice(start, index)
                start, used = index, names
            used += wide
        yield slice(start, len(self.summaries))


@dataclass(frozen=True)
class Row:
    """One line of the comparison: the number, how it reads and which end of it is good."""

    name: str
    value: Callable[[Summary], float | None]
    text: Callable[[float | None], str]
    best: Callable[[list[float]], float] | None = None
    begins_section: bool = False
    optional: bool = False  # left out where it is zero in all runs
    of_all: bool = False  # also those that are not ranked may be best


def percent_text(value: float | None) -> str:
    """Per cent with one decimal."""
    return "-" if value is None else f"{value:.1f} %"


def share_of(kind: str) -> Callable[[Summary], float | None]:
    """Per cent of the KV memory, over the whole run."""
    return lambda summary: palette.whole_run(summary)[kind]


def waste_of(summary: Summary) -> float | None:
    """Per cent of the KV memory that is wasted, over the whole run."""
    return palette.waste(palette.whole_run(summary))


def tokens_while_waiting(summary: Summary) -> float | None:
    """Per cent of the KV memory that holds tokens while requests wait; None: they never did."""
    percent = palette.while_waiting(summary)
    return None if percent is None else percent["token"]


def waste_while_waiting(summary: Summary) -> float | None:
    """Per cent of the KV memory that is wasted while requests wait; None: they never did."""
    percent = palette.while_waiting(summary)
    return None if percent is None else palette.waste(percent)


def held_back_by(limit: str) -> Callable[[Summary], float | None]:
    """Per cent of the run's time in which a limit held requests back."""

    def read(summary: Summary) -> float | None:
        found = share(summary, limit)
        return None if found is None else 100 * found

    return read


def _point(latency: str, point: str) -> Callable[[Summary], float | None]:
    return lambda summary: number(summary["latency"][latency][point])


def _of(section: str, name: str) -> Callable[[Summary], float | None]:
    return lambda summary: number(summary[section].get(name))


def _preemptions(summary: Summary) -> float:
    engine = summary["engine"]
    return sum(number(engine.get(f"preemptions_{how}")) or 0 for how in ("recompute", "swap"))


def goal_rows() -> list[Row]:
    """The numbers of goals, where any run has them."""
    return [
        Row(
            words,
            partial(goal, section=section, name=name),
            percent_of_share if name == "attained_share" else figures,
            min if section == "price" else max,
            begins_section=name == "attained_share",
            optional=True,
        )
        for (section, name), words in NUMBERS.items()
    ]


_ROWS = (
    Row("requests finished", _of("requests", "finished"), count, max, of_all=True),
    Row("requests/s", _of("throughput", "requests_per_s"), figures, max),
    Row("output tokens/s", _of("throughput", "output_tokens_per_s"), figures, max),
    Row("requests at once, mean", _of("engine", "mean_running"), figures),
    Row("requests at once, most", _of("engine", "max_running"), count, max),
    Row("tokens in KV memory", share_of("token"), percent_text, max, begins_section=True),
    Row("tokens, requests waiting", tokens_while_waiting, percent_text, max, optional=True),
    Row("cached prefixes", share_of("cached"), percent_text, optional=True),
    Row("idle memory", share_of("idle"), percent_text, optional=True),
    Row("waste in all", waste_of, percent_text, min),
    Row("  reserved", share_of("reserved"), percent_text),
    Row("  internal", share_of("internal"), percent_text),
    Row("  external", share_of("external"), percent_text),
    Row("waste, requests waiting", waste_while_waiting, percent_text, min, optional=True),
    Row("first token, p50", _point("ttft_s", "p50"), seconds, min, begins_section=True),
    Row("first token, p99", _point("ttft_s", "p99"), seconds, min),
    Row("normalised latency, mean", _point("normalized_s_per_token", "mean"), seconds, min),
    Row("preemptions", _preemptions, count, min),
    *(
        Row(f"held by {words}", held_back_by(limit), percent_text, optional=True)
        for limit, words in SHORT_LIMITS.items()
    ),
    Row("sharing saves, whole run", _of("memory", "saved_by_sharing"), percent_text, max, optional=True),
    Row("prefix hits, tokens", _of("engine", "prefix_hit_tokens"), count, max, optional=True),
    *goal_rows(),
)


MANY = 8
"""Runs of a comparison that have a column each; more have a row each."""


@dataclass(frozen=True)
class Ranking:
    """Many runs, a row each, the one that finishes most requests a second first."""

    summaries: Sequence[Summary]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One table of numbers; a star marks the best of each column."""
        speed = _of("throughput", "requests_per_s")
        columns = (
            Row("req/s", speed, figures, max),
            Row("at once", _of("engine", "mean_running"), figures),
            Row("tokens", share_of("token"), percent_text, max),
            Row("waste", waste_of, percent_text, min),
            Row("TTFT p50", _point("ttft_s", "p50"), seconds, min),
            Row("preempted", _preemptions, count, min),
        )
        fit = ranked([[summary] for summary in self.summaries])
        places = sorted(
            range(len(fit)), key=lambda place: (not fit[place], -(speed(self.summaries[place]) or 0.0))
        )
        ordered = [self.summaries[place] for place in places]
        table, cells = ruled_table(""), Comparison(ordered).cells
        for column in columns:
            table.add_column(column.name, justify="right", no_wrap=True)
        by_column = [cells(column) for column in columns]
        for place, summary in enumerate(ordered):
            table.add_row(Text(str(summary["label"])), *(column[place] for column in by_column))
        yield table
        yield Text("* best of its column; memory: means of the whole run", style="dim")


def marked(text: str, best: bool) -> Text:
    """A cell of a comparison, with its star where it is the best."""
    return Text(f"{text} *", style="bold green") if best else Text(f"{text}  ")


def _latency_table(summary: Summary) -> Table:
    """A row per latency, each in the unit that suits its largest number."""
    table = ruled_table("latency")
    for point in POINTS:
        table.add_column(point, justify="right", no_wrap=True)
    for name, words in LATENCIES.items():
        values = [number(summary["latency"][name][point]) for point in POINTS]
        short = max((value for value in values if value is not None), default=1.0) < 1
        factor, unit = (1e3, "ms") if short else (1.0, "s")
        cells = [figures(None if value is None else value * factor) for value in values]
        table.add_row(f"{words} ({unit})", *cells)
    return table


def _memory_table(summary: Summary) -> Table:
    memory = summary["memory"]
    saturated = memory.get("saturated")
    waited = number(memory.get("saturated_share"))
    fleet = summary.get("fleet")
    of = f" of each of {fleet['replicas']} replicas" if fleet else ""
    table = ruled_table(f"KV memory{of}, {count(number(memory['capacity_tokens']))} tokens")
    table.add_column("whole run", justify="right")
    if saturated:
        part = "" if waited is None else f" ({rounded_share(waited)} of it)"
        table.add_column(f"requests waited{part}", justify="right")
    for kind in palette.kinds_of([summary]):
        parts = [memory["average"], saturated] if saturated else [memory["average"]]
        cells = [percent_text(number(part.get(kind))) for part in parts]
        table.add_row(Text(f"{kind}: {KINDS[kind].meaning}"), *cells)
    return table


def _facts(summary: Summary) -> Table:
    """What the engine counted, and what the run cost: names and values without a frame."""
    engine, memory, simulation = summary["engine"], summary["memory"], summary["simulation"]
    told = {"allocator", "scheduler", "reserve", "steps"}
    told |= {"mean_running", "mean_running_saturated", "max_running"}
    told |= {"cow_copies", "prefix_hit_tokens", "preemptions_swap", "swapped_in_blocks", "swapped_out_blocks"}
    counters = {
        **{name: value for name, value in engine.items() if name not in told},
        **{name: memory.get(name) for name in ("peak_used_tokens", "external_fragmentation_refusals")},
    }
    counted = [f"{name.replace('_', ' ')} {_counted(value)}" for name, value in counters.items() if value]
    at_once = figures(number(engine["mean_running"]))
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    table.add_row(
        "engine",
        Text(
            f"{engine['scheduler']} on {engine['allocator']}: {count(number(engine['steps']))} steps, "
            f"{at_once} requests at once on average, {count(number(engine['max_running']))} at most"
        ),
    )
    table.add_row("counted", Text("; ".join(counted) or "no preemption"))
    if held_back([summary]):
        table.add_row("held back", Text(f"by {held_back([summary])}"))
    for name, text in (
        ("prefixes", _hits(summary)),
        ("shared", _shared(summary)),
        ("swapped", _swaps(summary)),
        ("upkeep", _upkeep(summary)),
        ("torch", _memory_stats(summary)),
    ):
        if text:
            table.add_row(name, text)
    table.add_row("clock", Text(f"{summary['cost']['source']}\n{clocks.beside([summary['cost']])}"))
    speed = count(number(simulation["requests_per_cpu_s"]))
    table.add_row("simulated", f"in {seconds(number(simulation['cpu_s']))} of CPU, {speed} requests/CPU-s")
    return table


def _hits(summary: Summary) -> str:
    """What the prefix cache found; several answers, or evicted requests, may find a prompt more than once."""
    hits, rate = number(summary["engine"].get("prefix_hit_tokens")), summary["throughput"]
    if not hits:
        return ""
    per_s = (number(rate["total_tokens_per_s"]) or 0.0) - (number(rate["output_tokens_per_s"]) or 0.0)
    prompts = per_s * summary["duration_s"]
    share = f", {100 * hits / prompts:.1f} % of the prompts" if hits <= prompts else ""
    return f"{count(hits)} tokens were found in the prefix cache{share}"


def _shared(summary: Summary) -> str:
    saved = number(summary["memory"].get("saved_by_sharing"))
    copies = number(summary["engine"].get("cow_copies"))
    parts = [f"saves {saved:.1f} % of the memory on average" if saved else ""]
    parts.append(f"{count(copies)} blocks copied on write" if copies else "")
    return "; ".join(filter(None, parts))


def _upkeep(summary: Summary) -> str:
    """What the allocator did beside lending, and how long steps waited for it."""
    done = summary.get("upkeep")
    if not done or not any(done.values()):
        return ""
    calls = f"{count(number(done.get('maps')))} maps, {count(number(done.get('unmaps')))} unmaps"
    waited = (number(done.get("steps_waited_s")) or 0) + (number(done.get("beyond_steps_s")) or 0)
    beside = seconds(number(done.get("beside_steps_s")))
    return f"{calls}; steps waited {seconds(waited)}, {beside} went on beside them"


def _memory_stats(summary: Summary) -> str:
    """The largest values that torch would report of its memory."""
    told = summary.get("memory_stats")
    if not told:
        return ""
    names = ("allocated", "reserved", "inactive_split")
    peaks = ", ".join(
        f"{name.replace('_', ' ')} {(number(told.get(f'{name}_peak_bytes')) or 0) / GIB:.2f} GiB"
        for name in names
    )
    return f"at most {peaks}; {count(number(told.get('alloc_retries')))} retries"


def _swaps(summary: Summary) -> str:
    engine = summary["engine"]
    if not engine.get("preemptions_swap"):
        return ""
    times, out, back = (
        count(number(engine.get(name)))
        for name in ("preemptions_swap", "swapped_out_blocks", "swapped_in_blocks")
    )
    return f"{times} {'time' if times == '1' else 'times'}; {out} blocks to the host, {back} back"


def _counted(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else figures(number(value))


def _warnings(summary: Summary) -> list[str]:
    """What a reader must know before trusting the numbers, then the notes of the run."""
    notes = [LATENCIES_GROW] if is_overloaded(summary) else []
    return notes + [str(note) for note in summary.get("notes", [])]


def notes_of_all(summaries: Sequence[Summary]) -> list[str]:
    """Each note once: as it is when it is true of all runs, else after the names of its runs."""
    labels: dict[str, dict[str, None]] = {}
    for summary in summaries:
        for note in _warnings(summary):
            labels.setdefault(note, {})[str(summary["label"])] = None
    everybody = {str(summary["label"]) for summary in summaries}
    return [
        note if names.keys() == everybody else f"{', '.join(names)}: {note}" for note, names in labels.items()
    ]


def ruled_table(first_column: str) -> Table:
    """The look of all tables: one rule under the heading, nothing else."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column(first_column, no_wrap=True)
    return table


def _cells(percent: dict[str, float], width: int) -> dict[str, int]:
    """How many of `width` cells each kind gets: rounded so that they sum to the width."""
    cells, done, filled = {}, 0.0, 0
    whole = sum(percent.values())
    for kind, part in percent.items():
        done += part
        cells[kind] = round(width * done / whole) - filled
        filled += cells[kind]
    return cells
