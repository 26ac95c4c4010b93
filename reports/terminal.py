"""Terminal reports of runs and comparisons, with one seed or several: `31.5 ms`, `31.5 ± 0.4 ms`.

The number after ± is half the 95 % confidence interval, see seeds/intervals.py; numbers equal for all seeds
have none. Tables fit in 80 columns. Without a terminal, rich omits colours and the ledger bar uses glyphs.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from kvsim.reports import clocks, palette
from kvsim.reports.by_layers import layers_table
from kvsim.reports.comparison import Comparison, Ranking
from kvsim.reports.fitting import ruled_table
from kvsim.reports.goals import in_words
from kvsim.reports.headline import headline, verdict
from kvsim.reports.links import links_in_words
from kvsim.reports.palette import KINDS, Shown, Summary, count, every, figures, number, percent_text, seconds
from kvsim.reports.pools import pools_table
from kvsim.reports.quantities import LATENCIES, POINTS, at
from kvsim.reports.ranked import System, by_scheduler, different_clocks, rejections
from kvsim.reports.scaled import scaled_words
from kvsim.reports.seeds.intervals import Interval, equal, interval
from kvsim.reports.seeds.words import difference_lines, mean_and_half, share_of_time, with_spread
from kvsim.reports.shown import noted, told
from kvsim.reports.waiting import LATENCIES_GROW, held_back, is_overloaded, overload, overloads
from kvsim.sim.models.catalog import GIB

MANY = 8
"""Up to this many systems have a column each in a comparison; more, with one seed, have a row each."""
_ASCII_GLYPHS = dict(zip(KINDS, "#=r/x+i.", strict=True))


def report_table(runs: Sequence[Sequence[Summary]], compared: bool) -> RenderableType:
    """The report of a command; `runs` by seed, then by system."""
    systems = list(zip(*runs, strict=True))
    return compare_table(systems) if compared else run_table(systems[0])


def run_table(seeds: System) -> RenderableType:
    """The report of a run: overload, headline, ledger bar, latencies, memory, engine, notes."""
    if _drawn_in_vain([[summary] for summary in seeds]):
        return Group(run_table(seeds[:1]), "", _same(len(seeds)))
    parts: list[RenderableType] = _overloads([overload(seeds)])
    parts += [Text(headline(seeds), style="bold")]
    if goals := in_words(seeds):
        parts.append(Text(goals, style="bold"))
    parts.append("")
    percent = {kind: fmean(palette.whole_run(summary)[kind] for summary in seeds) for kind in KINDS}
    if any(percent.values()):
        parts += [LedgerBar(percent), ""]
    if all(summary["requests"]["finished"] for summary in seeds):
        parts += [_latency_table(seeds), "", _memory_table(seeds), ""]
        if (apart := layers_table(seeds, palette.shares_of_all(seeds)[1])) is not None:
            parts += [apart, ""]
    if (pools := pools_table(seeds)) is not None:
        parts += [pools, ""]
    parts.append(_facts(seeds))
    places = [f"seed {place} of {len(seeds)}" for place in range(1, len(seeds) + 1)]
    return Group(*parts, *_notes([{**each, "label": name} for name, each in zip(places, seeds, strict=True)]))


def compare_table(systems: Sequence[System]) -> RenderableType:
    """Systems with the same traffic side by side, a column each, with the best of every row marked.

    Above the table: what prevents a comparison, and which systems are overloaded. Below it: a verdict,
    clocks, notes. With several seeds the verdict is what differs beyond their spread.
    """
    if _drawn_in_vain(list(zip(*systems, strict=True))):
        return Group(compare_table([seeds[:1] for seeds in systems]), "", _same(len(systems[0])))
    flat, several = [summary for seeds in systems for summary in seeds], len(systems[0])
    parts = _overloads([different_clocks(systems), rejections(systems), *overloads(systems)])
    differ = by_scheduler(systems)
    parts += [Text(differ, style="bold"), ""] if differ else []
    parts += [Ranking(systems) if len(systems) > MANY and several == 1 else Comparison(systems), ""]
    if several == 1:
        parts += [Text(verdict(flat), style="bold"), ""]
    elif lines := difference_lines(systems):
        points = Table.grid(padding=(0, 1, 0, 0))
        for line in lines:
            points.add_row("-", Text(line, style="bold"))
        head = f"Of {several} seeds, paired, with 95 % confidence:"
        parts += [Text(head, style="bold"), points, ""]
    return Group(*parts, *_clock_lines(flat), *_notes(flat))


def _drawn_in_vain(runs: Sequence[Sequence[Summary]]) -> bool:
    """Whether several seeds gave the same numbers."""
    return len(runs) > 1 and equal(runs)


def _same(seeds: int) -> Text:
    said = f"{every(seeds, 'seed').capitalize()} give the same numbers: nothing here is drawn at random."
    return Text(said, style="bold")


def _overloads(lines: Sequence[str]) -> list[RenderableType]:
    """The non-empty lines at the top, followed by a blank one."""
    said: list[RenderableType] = [Text(line, style="bold red") for line in lines if line]
    return [*said, ""] if said else []


def _clock_lines(summaries: Sequence[Summary]) -> list[RenderableType]:
    """Where a comparison's step times come from, and how accurate they are."""
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
    """Memory as a bar of coloured blocks, with a legend; without colour, one glyph per kind."""

    percent: dict[str, float]
    widest: int = 80

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The bar, as wide as the console but at most `widest`."""
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


def _found(seeds: System, *path: str) -> Interval | None:
    return interval(list(map(at(*path), seeds)))


def _mean(seeds: System, *path: str) -> float:
    """The mean of the number at this path; 0 if a seed lacks it."""
    found = _found(seeds, *path)
    return 0.0 if found is None else found.mean


def _latency_table(seeds: System) -> Table:
    """A row per latency, in the unit that suits its median; the spread is below the mean."""
    table = ruled_table("latency, means" if len(seeds) > 1 else "latency", *POINTS)
    for latency in LATENCIES.values():
        found = [_found(seeds, "latency", latency.column, point) for point in POINTS]
        median = found[POINTS.index("p50")]
        short = median is not None and median.mean < 1
        factor, unit = (1e3, f"m{latency.unit}") if short else (1.0, latency.unit)
        cells = [_cell_of(each, factor) for each in found]
        table.add_row(f"{latency.in_full} ({unit})", *cells)
    return table


def _cell_of(found: Interval | None, factor: float) -> Text:
    """A mean in another unit, with half its interval below it."""
    if found is None or found.fixed:
        return Text(figures(None if found is None else found.mean * factor))
    value = found.mean * factor
    mean, half = mean_and_half(figures(value), value, found.half * factor)
    return Text(mean).append(f"\n±{half}", "dim")


def _memory_table(seeds: System) -> Table:
    fleet = seeds[0].get("fleet")
    of = f" of each of {fleet['replicas']} replicas" if fleet else ""
    of += ", on average" if seeds[0].get("pools") else ""
    capacity = told(seeds, count, "memory", "capacity_tokens")
    table = ruled_table(f"KV memory{of}, {capacity} tokens", "whole run")
    parts = ["average"]
    if all(summary["memory"].get("saturated") for summary in seeds):
        parts.append("saturated")
        part = share_of_time(list(map(at("memory", "saturated_share"), seeds)))
        table.add_numbers(f"requests waited{f' ({part} of it)' if part else ''}")
    for kind in palette.kinds_of(seeds):
        cells = [told(seeds, percent_text, "memory", part, kind) for part in parts]
        table.add_row(Text(f"{kind}: {palette.meaning(kind, seeds)}"), *cells)
    return table


def _facts(seeds: System) -> Table:
    """The engine's counters and the run's cost, as names and values without a frame."""
    engine, costs = seeds[0]["engine"], [summary["cost"] for summary in seeds]
    steps = (
        "{steps:count} steps, {mean_running:figures} requests at once on average, {max_running:count} at most"
    )
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    sources = "; ".join(dict.fromkeys(str(cost["source"]) for cost in costs))
    speed = count(_mean(seeds, "simulation", "requests_per_cpu_s"))
    cpu_s = sum(number(summary["simulation"]["cpu_s"]) or 0.0 for summary in seeds)
    times = f"{len(seeds)} times " if len(seeds) > 1 else ""
    held = held_back(seeds)
    for name, text in (
        ("engine", f"{engine['scheduler']} on {engine['allocator']}: {_filled(seeds, 'engine', steps)}"),
        ("counted", "; ".join(_counted(seeds)) or "no preemption"),
        ("blocked", f"by {held}" if held else ""),
        ("prefixes", _hits(seeds)),
        ("shared", _shared(seeds)),
        ("swapped", _swaps(seeds)),
        ("tier", _tier(seeds)),
        ("drafts", _drafts(seeds)),
        ("upkeep", _upkeep(seeds)),
        ("torch", _memory_stats(seeds)),
        ("service", _service(seeds)),
        ("faults", _faults(seeds)),
        ("scaling", scaled_words(seeds)),
        ("handed over", _hand_over(seeds)),
        ("migrated", _migration(seeds)),
        ("clock", f"{sources}\n{clocks.beside(costs)}"),
        ("simulated", f"{times}in {seconds(cpu_s)} of CPU, {speed} requests/CPU-s"),
    ):
        if text:
            table.add_row(name, Text(text))
    return table


_TOLD_APART = {
    *("allocator", "scheduler", "reserve", "steps", "mean_running", "mean_running_saturated", "max_running"),
    *("cow_copies", "prefix_hit_tokens", "preemptions_swap", "swapped_in_blocks", "swapped_out_blocks"),
}


def _counted(seeds: System) -> list[str]:
    """All nonzero counters that have no line of their own."""
    names = [("engine", name) for name in seeds[0]["engine"] if name not in _TOLD_APART]
    names += [("memory", name) for name in ("peak_used_tokens", "external_fragmentation_refusals")]
    return [
        _counter(name, told(seeds, _shown(seeds[0][section].get(name)), section, name))
        for section, name in names
        if _mean(seeds, section, name)
    ]


def _counter(name: str, told: str) -> str:
    if name == "preemptions_recompute":
        return f"{told} preemption{'' if told == '1' else 's'} (recomputed)"
    return f"{name.replace('_', ' ')} {told}"


def _shown(value: object) -> Shown:
    return count if isinstance(value, int) else figures


def _hits(seeds: System) -> str:
    """Prefix cache hits; with several answers or preemptions, one prompt may hit more than once."""
    if not _mean(seeds, "engine", "prefix_hit_tokens"):
        return ""
    shares = [_hit_percent(summary) for summary in seeds]
    share = f", {with_spread(percent_text, interval(shares))} of the prompts" if max(shares) <= 100 else ""
    hits = told(seeds, count, "engine", "prefix_hit_tokens")
    return f"{hits} tokens were found in the prefix cache{share}"


def _hit_percent(summary: Summary) -> float:
    hits, rate = number(summary["engine"].get("prefix_hit_tokens")), summary["throughput"]
    per_s = (number(rate["total_tokens_per_s"]) or 0.0) - (number(rate["output_tokens_per_s"]) or 0.0)
    prompts = per_s * summary["duration_s"]
    return 100 * (hits or 0.0) / prompts if prompts else 0.0


def _shared(seeds: System) -> str:
    saved, copies = ("memory", "saved_by_sharing"), ("engine", "cow_copies")
    said = []
    if _mean(seeds, *saved):
        said.append(f"saves {told(seeds, percent_text, *saved)} of the memory on average")
    if _mean(seeds, *copies):
        said.append(f"{told(seeds, count, *copies)} blocks copied on write")
    return "; ".join(said)


_FORMATS: dict[str, tuple[Shown, float]] = {
    **{"count": (count, 1.0), "figures": (figures, 1.0), "seconds": (seconds, 1.0)},
    **{"GiB": (figures, 1 / GIB), "share": (percent_text, 100.0)},
}
"""Formats, and what they multiply a number by."""


def _filled(seeds: System, section: str, template: str) -> str:
    """A text about a section of the summaries: `{NAME:FORMAT}` stands for its number of that name."""

    def number_of(found: re.Match[str]) -> str:
        text, times = _FORMATS[found[2]]
        return told(seeds, text, section, found[1], times=times)

    return re.sub(r"\{(\w+):(\w+)\}", number_of, template)


def _swaps(seeds: System) -> str:
    if not _mean(seeds, "engine", "preemptions_swap"):
        return ""
    times = told(seeds, count, "engine", "preemptions_swap")
    moved = "{swapped_out_blocks:count} blocks to the host, {swapped_in_blocks:count} back"
    return f"{times} {'time' if times == '1' else 'times'}; {_filled(seeds, 'engine', moved)}"


def _tier(seeds: System) -> str:
    """Hits and transfers of the tier below GPU memory, and how long requests waited for it."""
    if not all(summary.get("tier") for summary in seeds):
        return ""
    links = "".join(f", {each}" for each in links_in_words(seeds))
    said = (
        "{hit_tokens:count} tokens were loaded from the host's {capacity_bytes:GiB} GiB, {hit_share:share} "
        "of the prompts, which saved {saved_prefill_s:seconds} of prefill; {loaded_bytes:GiB} GiB loaded, "
        "{stored_bytes:GiB} GiB stored, the link {load_busy_share:share} and {store_busy_share:share} busy"
        f"{links}; {{requests_waited:count}} requests waited {{mean_wait_s:seconds}} each"
    )
    if any("promoted_tokens" in summary["tier"] for summary in seeds):
        said += "; {promoted_tokens:count} tokens had moved up to the host from tiers below it"
    return _filled(seeds, "tier", said)


def _drafts(seeds: System) -> str:
    if not _mean(seeds, "speculation", "draft_tokens"):
        return ""
    said = (
        "{accepted_tokens:count} of {draft_tokens:count} accepted, {acceptance_length:figures} tokens per "
        "step and sequence; {wasted_tokens:count} computed for nothing"
    )
    return _filled(seeds, "speculation", said)


def _upkeep(seeds: System) -> str:
    """The allocator's other work, and how long steps waited for it."""
    done = [summary.get("upkeep") or {} for summary in seeds]
    if not any(value for each in done for value in each.values()):
        return ""
    waited_s = [
        sum(number(each.get(name)) or 0.0 for name in ("steps_waited_s", "beyond_steps_s")) for each in done
    ]
    waited = with_spread(seconds, interval(waited_s))
    said = f"{{maps:count}} maps, {{unmaps:count}} unmaps; steps waited {waited}, "
    return _filled(seeds, "upkeep", said + "{beside_steps_s:seconds} went on beside them")


def _hand_over(seeds: System) -> str:
    """Prompts handed over from prefill to decode servers, and how long they were held."""
    if not seeds[0].get("hand_over"):
        return ""
    said = (
        "{requests:count} prompts, {read_bytes:GiB} GiB, read in {mean_transfer_s:seconds} each; held for "
        "{mean_held_s:seconds}, at most {peak_held_share:share} of a prefill replica"
    )
    return _filled(seeds, "hand_over", said)


def _migration(seeds: System) -> str:
    """How many running requests migrated, and how long each paused."""
    if not seeds[0].get("migration"):
        return ""
    said = "{requests:count} requests, {migrations:count} times, {copied_bytes:GiB} GiB"
    if seeds[0]["migration"]["migrations"]:
        said += "; copied in {mean_copy_s:seconds} each, of which {mean_downtime_s:seconds} they stood still"
    return _filled(seeds, "migration", said)


def _faults(seeds: System) -> str:
    if not seeds[0].get("faults"):
        return ""
    died = "replica died" if _mean(seeds, "faults", "deaths") == 1 else "deaths of replicas"
    said = (
        f"{{deaths:count}} {died}: {{resent_requests:count}} requests were sent again, "
        "{wasted_output_tokens:count} output tokens were wasted, the KV of {lost_kv_tokens:count} tokens was "
        "lost, {down_s:seconds} down"
    )
    return _filled(seeds, "faults", said)


def _memory_stats(seeds: System) -> str:
    """The peaks that torch's memory statistics would report."""
    if not all(summary.get("memory_stats") for summary in seeds):
        return ""
    peaks = []
    for name in ("allocated", "reserved", "inactive_split"):
        gib = [(number(summary["memory_stats"].get(f"{name}_peak_bytes")) or 0.0) / GIB for summary in seeds]
        peaks.append(f"{name.replace('_', ' ')} {with_spread('{:.2f} GiB'.format, interval(gib))}")
    return f"at most {', '.join(peaks)}; {told(seeds, count, 'memory_stats', 'alloc_retries')} retries"


def _service(seeds: System) -> str:
    """The longest wait, attainment of the requests' own goals, and fairness between clients, if known."""
    if not all(summary.get("service") for summary in seeds):
        return ""
    said = [f"longest wait {told(seeds, seconds, 'service', 'longest_wait_s')}"]
    if seeds[0]["service"].get("attained_share") is not None:
        said.append(f"{told(seeds, '{:.0%}'.format, 'service', 'attained_share')} within their own goals")
    if "clients" in seeds[0]["service"]:
        apart = told(seeds, count, "service", "largest_difference")
        said.append(f"clients that waited were up to {apart} weighted tokens apart")
    return ", ".join(said)


def _notes(summaries: Sequence[Summary]) -> list[Text]:
    """Notes on how far to trust the numbers, each once; prefixed with names if they apply to some runs."""
    said = noted(
        (str(each["label"]), [*[LATENCIES_GROW] * is_overloaded(each), *each.get("notes", [])])
        for each in summaries
    )
    return [Text(f"note: {note}", style="yellow") for note in said]


def _cells(percent: dict[str, float], width: int) -> dict[str, int]:
    """How many of `width` cells each kind gets, rounded so that they sum to `width`."""
    cells, done, filled = {}, 0.0, 0
    whole = sum(percent.values())
    for kind, part in percent.items():
        done += part
        cells[kind] = round(width * done / whole) - filled
        filled += cells[kind]
    return cells
