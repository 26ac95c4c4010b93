"""A replay as one HTML file: the error of the simulation, its causes, its figures."""

import html
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from kvsim.reports.figures.replay import draw_replay
from kvsim.reports.html.plain import drawn, plain_page, table
from kvsim.reports.replay import quantity_in_words, value_in_words
from kvsim.reports.replays import Replayed
from kvsim.sim.counted import signed_percent

_KNOWN = ("what", "statistic", "measured", "simulated")


def replay_page(said: Mapping[str, Any], replayed: Replayed) -> str:
    """Build the whole file, which fetches nothing."""
    numbers, terms = said["numbers"], said["difference"]
    means = [each for each in numbers if each["statistic"] == "mean" and each["measured"]]
    off = ", ".join(f"{each['what']} {_off(each)}" for each in means)
    many = f"{said['requests']:,} requests of {said['tool']}"
    answer = f"{many}: simulated over measured, {off}." if off else f"{many}: no mean in common."
    others = [name for name in (numbers[0] if numbers else {}) if name not in _KNOWN]
    rows = []
    for each in numbers:
        key = each["what"], each["statistic"]
        values = [each[name] for name in ("measured", "simulated", *others)]
        first, second, *more = ["-" if value is None else value_in_words(key, value) for value in values]
        rows.append([quantity_in_words(key), first, second, _off(each), *more])
    sections = {"In numbers": table(["quantity", "measured", "simulated", "off", *others], rows)}
    if terms:
        sections["Where the mean E2E differs"] = _list(map(_term, terms))
    if replayed.latencies:
        sections["Figures"] = drawn(partial(draw_replay, replayed))
    sections["Clock and notes"] = _list([f"Clock: {replayed.clock}.", *said["notes"]])
    return plain_page(replayed.name, answer, sections)


def _off(number: Mapping[str, Any]) -> str:
    measured, simulated = number["measured"], number["simulated"]
    return signed_percent(simulated / measured - 1) if measured else "-"


def _term(term: Mapping[str, Any]) -> str:
    seconds = "" if term["seconds"] is None else f" {term['seconds']:+.3f} s"
    return f"{term['name']}{seconds}: {term['says']}"


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"
