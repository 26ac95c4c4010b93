"""What a search for the capacity says in the terminal: an answer, a line per system, how it was judged."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kvsim.reports.clocks import cost_in, differ, told
from kvsim.reports.comparison import ruled_table
from kvsim.reports.palette import figures
from kvsim.reports.seeds.intervals import Interval
from kvsim.reports.seeds.words import with_spread
from kvsim.reports.sweeps.assumed import assumed_words
from kvsim.reports.sweeps.capacity import MET, UNITS
from kvsim.reports.sweeps.steady import JUDGED, JUDGED_WHOLE
from kvsim.sim.cost.clock import NOT_VALIDATED
from kvsim.sim.counted import several
from kvsim.sim.record.slo import Slo

WORDS = {"rate": "requests/s", "clients": "clients", "rate-scale": "times the trace's speed"}

Row = Mapping[str, Any]
MOST_LINES = 12
"""Of more systems that were only searched roughly the best of each GPU is shown."""


def answer(rows: Sequence[Row], labels: Sequence[str], find: str, slo: Slo, for_rate: float | None) -> str:
    """The answer in a sentence."""
    unit, words = UNITS[find], WORDS[find]
    known = [(row, label) for row, label in zip(rows, labels, strict=True) if row[unit] is not None]
    if not known:
        return f"No system meets {slo}"
    if for_rate is not None:
        row, label = known[0]
        price = row.get("fleet_price_per_hour")
        cost = "" if price is None else f", {figures(price)} per hour"
        what = "cheapest" if price is not None else "fewest GPUs"
        margin = f" and {row['margin_percent']:g} % more" if row["margin_percent"] else ""
        return f"{for_rate:g} requests/s{margin} within {slo}: {what} with {label}: {count_of(row)}{cost}"
    row, label = max(known, key=lambda each: each[0][f"{unit}_per_gpu"])
    most = figures(row[f"{unit}_per_gpu"])
    speed = row["speed_of_trace"] if find == "rate" else None
    faster = "" if speed is None else f" ({figures(speed)} {WORDS['rate-scale']})"
    if len(rows) == 1:
        return f"{figures(row[unit])} {words}{faster} within {slo}, {most} per GPU"
    said = f"{label} carries most per GPU within {slo}: {most} {words}, {figures(row[unit])} in all{faster}"
    alike = [each for one, each in known if one["best_per_gpu"] and each != label]
    if len(alike) > 3:
        alike = [*alike[:2], f"{len(alike) - 2} others"]
    return f"{said}; no different beyond the seeds' spread: {'; '.join(alike)}" if alike else said


def count_of(row: Row) -> str:
    """`3 servers, 6 GPUs`."""
    return f"{several(row['fleet_servers'], 'server')}, {several(row['fleet_gpus'], 'GPU')}"


def trust_of(row: Row) -> str:
    """How far its clock was off for this model and GPU, in few words."""
    error = row.get("cost.tpot_error_percent")
    return NOT_VALIDATED if error is None else f"TPOT {error:.1f} % off"


def capacity_words(  # noqa: PLR0917 - what was asked
    rows: Sequence[Row],
    labels: Sequence[str],
    find: str,
    slo: Slo,
    for_rate: float | None,
    prices_from: str = "",
) -> RenderableType:
    """The answer, the table, why not more, and how it was judged."""
    unit = UNITS[find]
    table = ruled_table("")
    headings = ["GPUs", WORDS[find], "per GPU", "tokens/s/GPU", "tok/s/user"]
    fleet = for_rate is not None
    priced = any(row.get("fleet_price_per_hour") is not None for row in rows)
    if fleet:
        headings = [WORDS[find], "servers", "GPUs", *(["per hour"] if priced else []), "clock"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    best = _best_of_each_gpu(rows, unit) if fleet else set()
    for place, (row, label) in enumerate(zip(rows, labels, strict=True)):
        if len(rows) > MOST_LINES and best and place not in best and row["rough"]:
            continue
        cells = [_count(row["gpus"]), _interval(row, unit), figures(row[f"{unit}_per_gpu"])]
        if fleet:
            cells = [cells[1], _count(row["fleet_servers"]), _count(row["fleet_gpus"])]
            cells += [figures(row.get("fleet_price_per_hour"))] if priced else []
            cells += [trust_of(row)]
        else:
            cells += [figures(row["output_tokens_per_s_per_gpu"]), figures(row["tokens_per_s_per_user"])]
        table.add_row(Text(f"{label}{' *' if place in best else ''}", overflow="fold"), *cells)
    table.columns[0].no_wrap = False
    parts: list[RenderableType] = [
        Text(answer(rows, labels, find, slo, for_rate), style="bold"),
        "",
        table,
        "",
    ]
    if best:
        parts += [Text("* best of its GPU", style="dim"), ""]
    for place, (row, label) in enumerate(zip(rows, labels, strict=True)):
        if len(rows) > MOST_LINES and (row["rough"] or place > MOST_LINES):
            continue
        start = f"{label}: " if len(rows) > 1 else "limited by " if row[unit] is not None else ""
        parts.append(Text(f"{start}{row['limited_by']}"))
        if "more_kv_gain_percent" in row:
            parts.append(
                Text(f"  one server, {row['more_kv_gib_per_gpu']:g} GiB more KV per GPU: {_gain(row)}")
            )
    parts.append("")
    different = clocks_apart(rows, labels)
    parts += [Text(different, style="yellow"), ""] if different else []
    parts += [Text(f"{line}.", style="dim") for line in (*beside(rows, prices_from), _how(rows))]
    return Group(*parts)


def clocks_apart(rows: Sequence[Row], labels: Sequence[str]) -> str:
    """That the systems are on different clocks, or nothing."""
    return differ((label, cost_in(row)) for row, label in zip(rows, labels, strict=True) if row["seeds"])


def beside(rows: Sequence[Row], prices_from: str = "") -> list[str]:
    """What stands beside an answer, in text and picture: what it assumes, its clock and prices."""
    ended = [row for row in rows if row["seeds"]]
    if not ended:
        return []
    lines = [assumed_words(ended), f"Clock: {told([cost_in(row) for row in ended])}"]
    rough = sum(row["rough"] for row in ended)
    if rough:
        lines.append(
            f"{len(ended)} deployments fit; {len(ended) - rough} are confirmed by long runs, {rough} (~) by "
            "short ones alone, which say too much near saturation: none of these is cheaper"
        )
    return [*lines, *([f"Prices per hour: {prices_from}; --gpu-price takes yours"] if prices_from else [])]


def _how(rows: Sequence[Row]) -> str:
    """How it was judged: seeds, tolerance, what a steady state is, and where requests are from."""
    ended = [row for row in rows if row["seeds"]]
    seeds = max(row["seeds"] for row in ended)
    parts = [f"{seeds} seed{'s' * (seeds != 1)}, the same for all systems" + (", ±95 %" if seeds > 1 else "")]
    parts.append(f"to {100 * rows[0]['tolerance']:g} %")
    replayed = [row["speed_of_trace"] is not None for row in ended if row["status"] == MET]
    parts += [] if replayed and all(replayed) else [JUDGED]
    parts += [JUDGED_WHOLE] if any(replayed) else []
    parts += dict.fromkeys(row["requests_from"] for row in ended if row["requests_from"])
    return "; ".join(parts)


def _interval(row: Row, unit: str) -> str:
    if row[unit] is None:
        return "none"
    low, high = row[f"{unit}_low"], row[f"{unit}_high"]
    if row["rough"]:
        return f"~{figures(row[unit])}"
    return with_spread(figures, Interval(row[unit], low, high, fixed=low == high))


def _gain(row: Row) -> str:
    if row["more_kv_gain_percent"] is None:
        return "unknown"
    mean, low, high = (row[f"more_kv_gain_percent{each}"] for each in ("", "_low", "_high"))
    return f"{mean:+.1f} %" + (f" ({low:+.1f} to {high:+.1f})" if low != high else "")


def _best_of_each_gpu(rows: Sequence[Row], unit: str) -> set[int]:
    """The first, which is the cheapest, of each GPU, where several are compared."""
    if len({row.get("gpu") for row in rows}) < 2:
        return set()
    seen: dict[Any, int] = {}
    for place, row in enumerate(rows):
        if row[unit] is not None:
            seen.setdefault(row.get("gpu"), place)
    return set(seen.values())


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
