"""What a run and a comparison say in the terminal: tables that also read well without colour.

Every table fits in 80 columns; where the output is no terminal, rich leaves the colours out and the
ledger bar falls back on glyphs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich import box
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from kvsim.reports import palette
from kvsim.reports.palette import KINDS, Summary, count, figures, number, seconds

LATENCIES = {
    "ttft_s": "time to first token",
    "tpot_s": "time per output token",
    "itl_s": "between tokens",
    "e2e_s": "end to end",
    "normalized_s_per_token": "end to end per token",
    "queueing_s": "queueing",
}
POINTS = ("mean", "p50", "p90", "p95", "p99", "max")
_ASCII_GLYPHS = dict(zip(KINDS, "#r/x+.", strict=True))
_ALIKE = 1.02  # ratios below this are no difference worth a word


def run_table(summary: Summary) -> RenderableType:
    """The report of one run: headline, ledger bar, latencies, memory, engine, notes."""
    parts: list[RenderableType] = [Text(headline(summary), style="bold"), ""]
    if any(palette.shares(summary)[0].values()):
        parts += [LedgerBar(palette.shares(summary)[0]), ""]
    if summary["requests"]["finished"]:
        parts += [_latency_table(summary), "", _memory_table(summary), ""]
    parts.append(_facts(summary))
    parts += [Text(f"note: {note}", style="yellow") for note in _warnings(summary)]
    return Group(*parts)


def compare_table(summaries: Sequence[Summary]) -> RenderableType:
    """Runs side by side, a column each, the best of every row marked; verdict, cost and notes below."""
    costs = {str(summary["cost"]["source"]): None for summary in summaries}
    parts: list[RenderableType] = [Comparison(summaries), "", Text(verdict(summaries), style="bold"), ""]
    parts += [Text(f"cost: {cost}", style="dim") for cost in costs]
    return Group(*parts, *(Text(f"note: {note}", style="yellow") for note in notes_of_all(summaries)))


def headline(summary: Summary) -> str:
    """One sentence with the numbers of a run."""
    requests, rate = summary["requests"], summary["throughput"]
    finished, submitted = requests["finished"], requests["submitted"]
    share = count(finished) if finished == submitted else f"{count(finished)} of {count(submitted)}"
    served = f"{summary['label']} served {share} request{'' if submitted == 1 else 's'}"
    if not finished:
        return f"{served}."
    percent, saturated = palette.shares(summary)
    duration_s = summary["duration_s"]
    return (
        f"{served} in {f'{duration_s:,.1f}' if duration_s >= 100 else figures(duration_s)} s: "
        f"{figures(number(rate['requests_per_s']))} requests/s, "
        f"{figures(number(rate['output_tokens_per_s']))} output tokens/s; "
        f"KV memory {percent['token']:.1f} % tokens, {palette.waste(percent):.1f} % waste"
        + (" while requests waited." if saturated else f" on average ({_waits(summary)} waited).")
    )


def _waits(summary: Summary) -> str:
    return "hardly anybody" if summary["memory"].get("saturated") else "nobody ever"


def verdict(summaries: Sequence[Summary]) -> str:
    """One sentence on the best run against the worst: requests at once, rate or latency, waste."""
    served = [summary for summary in summaries if summary["requests"]["finished"]]
    if len(served) < 2:
        return headline(served[0]) if served else "No request finished in any run."
    served.sort(key=_rate)
    if _rate(served[-1]) < _ALIKE * _rate(served[0]):
        served.sort(key=_latency, reverse=True)
        speed = _verdict_on_latency(served[-1], served[0])
    else:
        speed = _verdict_on_rate(served[-1], served[0])
    best, worst = (f"{palette.waste(palette.shares(s)[0]):.1f} %" for s in (served[-1], served[0]))
    return f"{speed}; waste {best} against {worst}."


def _verdict_on_rate(best: Summary, worst: Summary) -> str:
    at_once = _times(best["engine"]["mean_running"], worst["engine"]["mean_running"])
    per_second = _times(_rate(best), _rate(worst))
    return (
        f"{best['label']} holds {at_once} as many requests at once as {worst['label']} "
        f"and finishes {per_second} as many per second"
    )


def _verdict_on_latency(best: Summary, worst: Summary) -> str:
    same = f"All finish about {figures(_rate(best))} requests/s"
    fast, slow = _latency(best), _latency(worst)
    if slow < _ALIKE * fast:
        return f"{same} and take about {seconds(fast)} per token"
    return f"{same}; {best['label']} takes {seconds(fast)} per token, {worst['label']} {seconds(slow)}"


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
        for chosen in self._side_by_side(rows, options.max_width):
            table = ruled_table("")
            for summary in self.summaries[chosen]:
                table.add_column(Text(str(summary["label"])), justify="right", overflow="fold")
            for row, cells in rows:
                table.add_row(row.name, *cells[chosen], end_section=row.ends_section)
            yield table
        yield Text(f"* {self.starred}; {_when(self.summaries)}", style="dim")

    starred: ClassVar[str] = "best of its row"

    def occurs(self, row: "Row") -> bool:
        """Whether a row holds anything but zeros."""
        return any(row.value(summary) for summary in self.summaries)

    def cells(self, row: "Row") -> list[Text]:
        """A row's numbers; those that read like the best get a star, unless all read alike."""
        values = [row.value(summary) for summary in self.summaries]
        known = [value for value in values if value is not None]
        texts = [row.text(value) for value in values]
        best = row.text(row.best(known)) if row.best and known and len(set(texts)) > 1 else None
        return [marked(text, text == best) for text in texts]

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


def _when(summaries: Sequence[Summary]) -> str:
    """Over which part of the runs the memory shares are means."""
    never = [str(summary["label"]) for summary in summaries if not palette.shares(summary)[1]]
    if len(never) == len(summaries):
        return "memory: mean of the whole run"
    but = f" ({', '.join(never)}: of the whole run)" if never else ""
    return f"memory: mean while requests waited{but}"


@dataclass(frozen=True)
class Row:
    """One line of the comparison: the number, how it reads and which end of it is good."""

    name: str
    value: Callable[[Summary], float | None]
    text: Callable[[float | None], str]
    best: Callable[[list[float]], float] | None = None
    ends_section: bool = False
    optional: bool = False  # left out where it is zero in all runs


def percent_text(value: float | None) -> str:
    """Per cent with one decimal."""
    return "-" if value is None else f"{value:.1f} %"


def _share(kind: str) -> Callable[[Summary], float | None]:
    return lambda summary: palette.shares(summary)[0][kind]


def _point(latency: str, point: str) -> Callable[[Summary], float | None]:
    return lambda summary: number(summary["latency"][latency][point])


def _of(section: str, name: str) -> Callable[[Summary], float | None]:
    return lambda summary: number(summary[section].get(name))


def _preemptions(summary: Summary) -> float:
    engine = summary["engine"]
    return sum(number(engine.get(f"preemptions_{how}")) or 0 for how in ("recompute", "swap"))


_ROWS = (
    Row("requests finished", _of("requests", "finished"), count, max),
    Row("requests/s", _of("throughput", "requests_per_s"), figures, max),
    Row("output tokens/s", _of("throughput", "output_tokens_per_s"), figures, max),
    Row("requests at once, mean", _of("engine", "mean_running"), figures),
    Row("requests at once, most", _of("engine", "max_running"), count, max, ends_section=True),
    Row("tokens in KV memory", _share("token"), percent_text, max),
    Row("cached prefixes", _share("cached"), percent_text, optional=True),
    Row("waste in all", lambda summary: palette.waste(palette.shares(summary)[0]), percent_text, min),
    Row("  reserved", _share("reserved"), percent_text),
    Row("  internal", _share("internal"), percent_text),
    Row("  external", _share("external"), percent_text, ends_section=True),
    Row("first token, p50", _point("ttft_s", "p50"), seconds, min),
    Row("first token, p99", _point("ttft_s", "p99"), seconds, min),
    Row("normalised latency, mean", _point("normalized_s_per_token", "mean"), seconds, min),
    Row("preemptions", _preemptions, count, min),
    Row("sharing saves, whole run", _of("memory", "saved_by_sharing"), percent_text, max, optional=True),
    Row("prefix hits, tokens", _of("engine", "prefix_hit_tokens"), count, max, optional=True),
)


def _rounded(share: float) -> str:
    """Whole per cent, but never 0 % for something."""
    return "< 1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


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
    share = number(memory.get("saturated_share"))
    table = ruled_table(f"KV memory, {count(number(memory['capacity_tokens']))} tokens")
    table.add_column("whole run", justify="right")
    if saturated:
        part = "" if share is None else f" ({_rounded(share)} of it)"
        table.add_column(f"requests waited{part}", justify="right")
    for kind, look in KINDS.items():
        parts = [memory["average"], saturated] if saturated else [memory["average"]]
        cells = [percent_text(number(part.get(kind))) for part in parts]
        table.add_row(Text(f"{kind}: {look.meaning}"), *cells)
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
    for name, text in (
        ("prefixes", _hits(summary)),
        ("shared", _shared(summary)),
        ("swapped", _swaps(summary)),
    ):
        if text:
            table.add_row(name, text)
    table.add_row("cost", Text(str(summary["cost"]["source"])))
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
    notes = []
    outside = number(summary["cost"].get("extrapolated_share")) or 0.0
    if outside > 0:
        notes.append(f"{100 * outside:.1f} % of the simulated time lies outside what was measured")
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
    for kind, share in percent.items():
        done += share
        cells[kind] = round(width * done / whole) - filled
        filled += cells[kind]
    return cells


def _rate(summary: Summary) -> float:
    return number(summary["throughput"]["requests_per_s"]) or 0.0


def _latency(summary: Summary) -> float:
    return number(summary["latency"]["normalized_s_per_token"]["mean"]) or 0.0


def _times(above: float, below: float) -> str:
    return f"{above / below:.1f} times" if below else "infinitely"
