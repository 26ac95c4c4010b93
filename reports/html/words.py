"""What a report says in words: what was run, on what, and what came out."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvsim.reports import palette
from kvsim.reports.palette import count, figures, number
from kvsim.reports.rundir.run import Run
from kvsim.reports.seeds.intervals import alike, interval
from kvsim.reports.seeds.tables import with_spread
from kvsim.reports.seeds.words import difference_lines, differences
from kvsim.reports.terminal import headline, percent_text, verdict
from kvsim.sim.summary import Summary

_SEED = re.compile(r", seed \d+")


def distinct(runs: Sequence[Run]) -> list[Run]:
    """The runs under names that differ: those of their directories where their own do not."""
    if len({run.label for run in runs}) == len(runs):
        return list(runs)
    names = [run.path.resolve().name for run in runs]
    if len(set(names)) < len(names):
        names = ["/".join(run.path.resolve().parts[-2:]) for run in runs]
    if len(set(names)) < len(names):
        names = [f"{name} ({place})" for place, name in enumerate(names, 1)]
    return [
        replace(run, label=name, summary=Summary({**run.summary, "label": name}))
        for run, name in zip(runs, names, strict=True)
    ]


def grouped(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs that differ in nothing but their seed, together; else each alone."""
    by_label: dict[str, list[Run]] = {}
    for run in runs:
        own = str(run.summary["label"])
        by_label.setdefault(own if _SEED.fullmatch(run.label.removeprefix(own)) else run.label, []).append(
            run
        )
    together = list(by_label.values())
    return together if len({len(group) for group in together}) == 1 else [[run] for run in runs]


def group_label(group: Sequence[Run]) -> str:
    """What the runs of a group are called together."""
    return group[0].label if len(group) == 1 else str(group[0].summary["label"])


def answer(runs: Sequence[Run]) -> str:
    """The outcome in one sentence with numbers; of several seeds, with their spread."""
    groups = grouped(runs)
    summaries = [run.summary for run in runs]
    if len(groups[0]) == 1:
        return verdict(summaries) if len(summaries) > 1 else headline(summaries[0])
    by_allocator = [[run.summary for run in group] for group in groups]
    seeds = f"With {len(groups[0])} seeds and 95 % confidence"
    if len(groups) > 1:
        return f"{seeds}, {_difference([alike(each) for each in by_allocator])}."
    each = alike(by_allocator[0])
    rate, token, wasted = (
        with_spread(write, interval([read(summary) for summary in each]))
        for write, read in (
            (figures, lambda s: number(s["throughput"].get("requests_per_s"))),
            (percent_text, lambda s: palette.shares(s)[0]["token"]),
            (percent_text, lambda s: palette.waste(palette.shares(s)[0])),
        )
    )
    label = group_label(groups[0])
    return f"{seeds}, {label} finishes {rate} requests/s; KV memory {token} tokens, {wasted} waste."


def _difference(allocators: Sequence[Sequence[Summary]]) -> str:
    """The fastest against the slowest: requests per second, at once, waste, each with its interval."""
    found = differences(allocators)
    rates = [each for each in found if each.measure == "requests per second" and each.beyond_spread]
    if not rates:
        return "no run finishes more requests per second than another beyond the seeds' spread"
    rate = max(rates, key=lambda each: each.mean)
    others = {each.measure: each for each in found if (each.of, each.to) == (rate.of, rate.to)}
    at_once, waste = others.get("requests at once"), others.get("waste")
    said = f"{rate.of} finishes {rate} as many requests per second as {rate.to}"
    if at_once and at_once.beyond_spread:
        said += f" and holds {at_once} as many at once"
    return said + (f"; it wastes {waste} of the memory less" if waste and waste.beyond_spread else "")


def differences_in_words(runs: Sequence[Run]) -> list[str]:
    """Of several seeds, how the runs differ in each measure; nothing of one seed or one allocator."""
    groups = grouped(runs)
    if len(groups) < 2 or len(groups[0]) < 2:
        return []
    lines = difference_lines([alike([run.summary for run in group]) for group in groups])
    return [f"{line[:1].upper()}{line[1:]}." for line in lines]


def title(runs: Sequence[Run]) -> str:
    """What was run, in a line."""
    model, gpu, trace = (_common(runs, read) for read in (_model, _gpu, _trace))
    where = " on ".join(filter(None, (model, gpu)))
    parts = [part for part in (where, trace and f"serving {trace}") if part]
    return " ".join(parts) or ", ".join(run.label for run in runs)


def facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(name, value) of what was run; where the runs differ, a value for each."""
    readers: dict[str, Callable[[Run], str]] = {
        "Model": _model,
        "GPU": _gpu,
        "Trace": _trace,
        "Requests": lambda run: count(number(run.summary["requests"].get("submitted"))),
        "Arrivals": _arrivals,
        "Allocator": lambda run: str(run.summary["engine"].get("allocator", "")),
        "Scheduler": lambda run: str(run.summary["engine"].get("scheduler", "")),
        "KV memory": lambda run: f"{count(number(run.summary['memory'].get('capacity_tokens')))} tokens",
        "Step times": lambda run: str(run.summary.get("cost", {}).get("source", "")),
        "Seed": lambda run: str(_workload(run).get("seed", "")),
    }
    told = []
    for name, read in readers.items():
        values = [read(run) for run in runs]
        each = dict.fromkeys(filter(None, values))
        if name == "Seed" and len(each) > 1:
            told.append(("Seeds", ", ".join(each)))
            continue
        if len(each) == 1:
            told.append((name, next(iter(each))))
        elif each:
            whose: dict[str, dict[str, None]] = {value: {} for value in each}
            for group in grouped(runs):
                for run in group:
                    whose.setdefault(read(run), {})[group_label(group)] = None
            told.append((name, "; ".join(_owned(value, [*who]) for value, who in whose.items() if value)))
    return told


def _owned(value: str, labels: Sequence[str]) -> str:
    """The value, and in which runs, unless their names say so."""
    return value if list(labels) == [value] else f"{value} ({', '.join(labels)})"


def notes(runs: Sequence[Run]) -> list[str]:
    """Sentences to know beside the numbers, each once, after the names of its runs if not true of all."""
    whose: dict[str, list[str]] = {}
    for run in runs:
        outside = number(run.summary.get("cost", {}).get("extrapolated_share")) or 0.0
        more = (
            [f"{100 * outside:.1f} % of the simulated time lies outside what was measured."]
            if outside
            else []
        )
        for note in [*more, *run.summary.get("notes", [])]:
            whose.setdefault(str(note), []).append(run.label)
    return [note if len(who) == len(runs) else f"{', '.join(who)}: {note}" for note, who in whose.items()]


def _common(runs: Sequence[Run], read: Callable[[Run], str]) -> str:
    values = {read(run) for run in runs}
    return values.pop() if len(values) == 1 else ""


def _scenario(run: Run) -> Mapping[str, Any]:
    found = run.config.get("scenario")
    return found if isinstance(found, Mapping) else {}


def _workload(run: Run) -> Mapping[str, Any]:
    found = run.config.get("workload")
    return found if isinstance(found, Mapping) else {}


def _name(value: object) -> str:
    return str(value.get("name", "")) if isinstance(value, Mapping) else ""


def _model(run: Run) -> str:
    return _name(_scenario(run).get("model"))


def _gpu(run: Run) -> str:
    scenario = _scenario(run)
    name, several = _name(scenario.get("gpu")), number(scenario.get("tensor_parallel_size")) or 1
    return f"{several:.0f} × {name}" if name and several > 1 else name


def _trace(run: Run) -> str:
    trace = str(_workload(run).get("trace", ""))
    return trace.rpartition("/")[2]


def _arrivals(run: Run) -> str:
    workload = _workload(run)
    clients, rate, kind = (workload.get(name) for name in ("clients", "request_rate", "arrivals"))
    if clients:
        return f"{clients} clients, each asking when it has its answer"
    if rate == "inf":
        return "all at once"
    if rate is not None:
        return (
            f"{figures(number(rate))} requests/s ({kind})" if kind else f"{figures(number(rate))} requests/s"
        )
    return "as in the trace" if workload else ""
