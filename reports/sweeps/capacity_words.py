"""A capacity search in the terminal: the answer, a line per system, how it was judged."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kvsim.reports.clocks import cost_in, differ, told
from kvsim.reports.fitting import ruled_table
from kvsim.reports.palette import figures
from kvsim.reports.seeds.intervals import Interval
from kvsim.reports.seeds.words import NO_DIFFERENCE, with_spread
from kvsim.reports.sweeps.assumed import OWN_ARRIVALS, assumed_words
from kvsim.reports.sweeps.capacity import LOAD_WORDS as WORDS
from kvsim.reports.sweeps.capacity_table import UNITS, clock_of
from kvsim.reports.sweeps.steady import JUDGED, JUDGED_WHOLE
from kvsim.reports.sweeps.table import Row
from kvsim.sim.cost.clock import NOT_VALIDATED
from kvsim.sim.counted import several
from kvsim.sim.options.goals import Goals
from kvsim.sim.options.sweeps import Sought
from kvsim.sim.record.slo import Slo

PER_THOUSAND = "price_per_thousand_requests"
MOST_LINES = 12
"""With more systems, only the best one per GPU is shown of those searched only coarsely."""


def answer(rows: Sequence[Row], labels: Sequence[str], asked: Sought, slo: Slo) -> str:
    """The answer in a sentence; if clocks differ, a warning and an answer per clock."""
    unit = UNITS[asked.find]
    apart = clocks_apart(rows, labels)
    by_clock: dict[str, list[tuple[Row, str]]] = {}
    for row, label in zip(rows, labels, strict=True):
        if row[unit] is not None:
            clock = clock_of(row)
            by_clock.setdefault(clock, []).append((row, f"{label} ({clock})" if apart else label))
    if not by_clock:
        return f"{labels[0]} meets {slo} at no load" if len(labels) == 1 else f"No system meets {slo}"
    start = ""
    if asked.for_rate is not None:
        more = f" and {100 * asked.margin_share:g} % more" if asked.margin_share else ""
        start = f"{asked.for_rate:g} requests/s{more} within {slo}: "
    elif apart:
        start = f"Within {slo}: "
    within = "" if start else f" within {slo}"
    said = [
        _cheapest(known) if asked.for_rate is not None else _most(known, asked, within, alone=len(rows) == 1)
        for known in by_clock.values()
    ]
    return f"{f'{apart} ' if apart else ''}{start}{'; '.join(said)}"


def _cheapest(known: Sequence[tuple[Row, str]]) -> str:
    """`cheapest with h100: 1 server, 1 GPU, 3.99 per hour`; `known`: on one clock, cheapest first."""
    row, label = known[0]
    price = row.get("fleet_price_per_hour")
    cost = "" if price is None else f", {figures(price)} per hour"
    what = "cheapest" if price is not None else "fewest GPUs"
    return f"{what} with {label}: {count_of(row)}{cost}"


def _most(known: Sequence[tuple[Row, str]], asked: Sought, within: str, *, alone: bool) -> str:
    """`h100 has the highest capacity per GPU within ...: 5.16 requests/s, ...`, for systems on one clock."""
    unit, words = UNITS[asked.find], WORDS[asked.find]
    row, label = max(known, key=lambda each: each[0][f"{unit}_per_gpu"])
    least = "at least " if row["at_least"] else ""
    speed = row["speed_of_trace"] if asked.find == "rate" else None
    faster = "" if speed is None else f" ({figures(speed)} {WORDS['rate-scale']})"
    per_gpu, all_of_it = figures(row[f"{unit}_per_gpu"]), figures(row[unit])
    if alone:
        each = f", {per_gpu} per GPU" if row["gpus"] != 1 else ""
        return f"{label} sustains {least}{all_of_it} {words}{faster}{within}{each}"
    if within or len(known) > 1:
        said = f"{label} has the highest capacity per GPU{within}: {least}{per_gpu} {words}"
    else:
        said = f"{label}: {least}{per_gpu} {words} per GPU"
    said += f", {all_of_it} in total{faster}" if row["gpus"] != 1 else faster
    alike = [each for one, each in known if one["best_per_gpu"] and each != label]
    if len(alike) > 3:
        alike = [*alike[:2], f"{len(alike) - 2} others"]
    said = f"{said}; {NO_DIFFERENCE}: {', '.join(alike)}" if alike else said
    priced = [each for each in known if each[0].get(PER_THOUSAND) is not None]
    if not priced:
        return said
    cheapest, its_label = min(priced, key=lambda each: each[0][PER_THOUSAND])
    price = f"{figures(cheapest[PER_THOUSAND])} per thousand"
    if its_label == label:
        return f"{said}; also the cheapest per request, {price}"
    return f"{said}; cheapest per request: {its_label}, {price}"


def count_of(row: Row) -> str:
    """`3 servers, 6 GPUs`."""
    gpus = row["fleet_gpus"]
    return f"{several(row['fleet_servers'], 'server')}, {_count(gpus)} GPU{'s' * (gpus != 1)}"


def trust_of(row: Row) -> str:
    """The error of the row's clock for this model and GPU, in a few words."""
    error = row.get("cost.tpot_error_percent")
    return NOT_VALIDATED if error is None else f"TPOT {error:.1f} % off"


def capacity_words(
    rows: Sequence[Row], labels: Sequence[str], asked: Sought, goals: Goals, defaults: Sequence[str]
) -> RenderableType:
    """The answer, the table, why not more, and how it was judged."""
    unit, fleet = UNITS[asked.find], asked.for_rate is not None
    best = _best_of_each_gpu(rows, unit) if fleet else set()
    shown = [
        place
        for place, row in enumerate(rows)
        if len(rows) <= MOST_LINES or not best or place in best or not row["rough"]
    ]
    headings, cells = _fleet_columns(rows) if fleet else _columns(rows, asked.find)
    table = ruled_table("", *headings)
    apart = bool(clocks_apart(rows, labels))
    clocks = [clock_of(row) for row in rows]
    for clock in dict.fromkeys(clocks):
        if apart:
            table.add_row(Text(f"clock: {clock}" if clock else "not simulated", style="italic"))
        for place in shown:
            if clocks[place] == clock:
                name = f"{'  ' * apart}{labels[place]}{' *' if place in best else ''}"
                table.add_row(Text(name, overflow="fold"), *cells[place])
    table.columns[0].no_wrap = False
    said = answer(rows, labels, asked, goals.limits)
    parts: list[RenderableType] = [Text(said, style="bold"), "", table, ""]
    if best:
        parts += [Text("* best of its GPU", style="dim"), ""]
    for place, (row, label) in enumerate(zip(rows, labels, strict=True)):
        if len(rows) > MOST_LINES and (row["rough"] or place > MOST_LINES):
            continue
        start = f"{label}: " if len(rows) > 1 else "limit: " if row[unit] is not None else ""
        why = str(row["limited_by"])
        parts.append(Text(f"{start}{why}" if start else f"{why[:1].upper()}{why[1:]}"))
        if "more_kv_gain_percent" in row:
            parts.append(
                Text(f"  one server, {row['more_kv_gib_per_gpu']:g} GiB more KV per GPU: {_gain(row)}")
            )
    told = (*beside(rows, defaults, goals.prices_from), _how(rows))
    return Group(*parts, "", *(Text(f"{line}.", style="dim") for line in told))


def _columns(rows: Sequence[Row], find: str) -> tuple[list[str], list[list[str]]]:
    unit = UNITS[find]
    headings = ["GPUs", WORDS[find], "per GPU", "tokens/s/GPU", "tok/s/user"]
    columns = [f"{unit}_per_gpu", "output_tokens_per_s_per_gpu", "tokens_per_s_per_user"]
    if any(row.get(PER_THOUSAND) is not None for row in rows):
        headings.append("per 1,000")
        columns.append(PER_THOUSAND)
    return headings, [
        [_gpus(row), _interval(row, unit), *(figures(row.get(name)) for name in columns)] for row in rows
    ]


def _fleet_columns(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    priced = any(row.get("fleet_price_per_hour") is not None for row in rows)
    headings = [WORDS["rate"], "servers", "GPUs", *(["per hour"] * priced), "clock"]
    return headings, [
        [
            _interval(row, UNITS["rate"]),
            *(_count(row[name]) for name in ("fleet_servers", "fleet_gpus")),
            *([figures(row.get("fleet_price_per_hour"))] * priced),
            trust_of(row),
        ]
        for row in rows
    ]


def clocks_apart(rows: Sequence[Row], labels: Sequence[str]) -> str:
    """A warning that the systems are on different clocks, or ""."""
    return differ((label, cost_in(row)) for row, label in zip(rows, labels, strict=True) if row["seeds"])


def beside(rows: Sequence[Row], defaults: Sequence[str] = (), prices_from: str = "") -> list[str]:
    """The notes on an answer, for text and figure: its assumptions, its clock and prices.

    `defaults`: the settings that come from a release.
    """
    ended = [row for row in rows if row["seeds"]]
    if not ended:
        return []
    lines = [assumed_words(ended), *(each.removesuffix(".") for each in defaults)]
    lines.append(f"Clock: {told([cost_in(row) for row in ended])}")
    rough = sum(row["rough"] for row in ended)
    if rough:
        lines.append(
            f"{len(ended)} deployments fit; {len(ended) - rough} are confirmed by long runs, {rough} (~) by "
            "short ones alone, which overestimate near saturation: none of these is cheaper on its clock"
        )
    if any(row.get("gpus_of_all") for row in ended):
        lines.append("GPUs, and what is per GPU or has a price, are those billed on average at this load")
    return [*lines, *([f"Prices per hour: {prices_from}; --gpu-price takes yours"] if prices_from else [])]


def _how(rows: Sequence[Row]) -> str:
    """How capacity was judged: seeds, tolerance, the steady state, and the source of requests."""
    ended = [row for row in rows if row["seeds"]]
    seeds = max(row["seeds"] for row in ended)
    same = ", the same for all systems" if len(rows) > 1 else ""
    within = f"within {100 * rows[0]['tolerance']:g} % of the edge"
    ranges = " (± half of a 95 % interval)" if seeds > 1 else ""
    parts = [f"The answer lies {within}, with {several(seeds, 'seed')}{same}{ranges}"]
    replayed = [row.get("arrivals") == OWN_ARRIVALS for row in ended]
    parts += [] if all(replayed) else [JUDGED]
    parts += [JUDGED_WHOLE] if any(replayed) else []
    drawn = dict.fromkeys(row["requests_from"] for row in ended if row["requests_from"])
    return ". ".join([*parts, *(f"{each[:1].upper()}{each[1:]}" for each in drawn)])


def _interval(row: Row, unit: str) -> str:
    if row[unit] is None:
        return "none"
    low, high = row[f"{unit}_low"], row[f"{unit}_high"]
    if row["rough"] or row["at_least"] or row["seeds"] == 1:
        return f"{'~' * row['rough']}{'>= ' * row['at_least']}{figures(row[unit])}"
    return with_spread(figures, Interval(row[unit], low, high, fixed=low == high))


def _gain(row: Row) -> str:
    if row["more_kv_gain_percent"] is None:
        return "unknown"
    mean, low, high = (row[f"more_kv_gain_percent{each}"] for each in ("", "_low", "_high"))
    return f"{mean:+.1f} %" + (f" ({low:+.1f} to {high:+.1f})" if low != high else "")


def _best_of_each_gpu(rows: Sequence[Row], unit: str) -> set[int]:
    """The first row of each GPU, which is the cheapest, if several are compared."""
    if len({row.get("gpu") for row in rows}) < 2:
        return set()
    seen: dict[Any, int] = {}
    for place, row in enumerate(rows):
        if row[unit] is not None:
            seen.setdefault(row.get("gpu"), place)
    return set(seen.values())


def _gpus(row: Row) -> str:
    """`4`; `2.31 of 4` with autoscaling."""
    found, of_all = _count(row["gpus"]), row.get("gpus_of_all")
    return found if of_all in (None, row["gpus"]) else f"{found} of {_count(of_all)}"


def _count(value: float | None) -> str:
    """Integers in full; means with three significant figures."""
    return figures(value) if value is None or value % 1 else f"{value:,.0f}"
