"""The text of a report: what was run, on what hardware, and the result."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kvsim.reports import clocks
from kvsim.reports.alike import by_seed, one_traffic, seed_of, traffic
from kvsim.reports.goals import in_words
from kvsim.reports.grouping import by_key
from kvsim.reports.headline import headline, memory, verdict
from kvsim.reports.palette import count, figures, number
from kvsim.reports.quantities import REQUESTS_PER_S
from kvsim.reports.ranked import by_scheduler, different_clocks, rejections
from kvsim.reports.rundir.run import Run
from kvsim.reports.seeds.intervals import interval
from kvsim.reports.seeds.words import difference_lines, differences, with_spread
from kvsim.reports.shown import noted
from kvsim.reports.waiting import overload, overloads
from kvsim.sim.record.summary import Summary

_SEED = re.compile(r"(, seed |seed-)\d+")
_MOST_LOADS = 4
"""If more runs are overloaded, the answer only counts them."""


def distinct(runs: Sequence[Run]) -> list[Run]:
    """The runs under distinct names: their directories' if their own are not distinct."""
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
    """Group runs by everything but the seed if all groups have the same seeds; else one run per group."""
    together = [sorted(group, key=lambda run: str(seed_of(run))) for group in by_seed(runs)]
    seeds = {tuple(map(seed_of, group)) for group in together}
    return together if len(seeds) == 1 else [[run] for run in runs]


def group_label(group: Sequence[Run]) -> str:
    """The common name of a group: the first run's, without the seed."""
    if len(group) == 1:
        return group[0].label
    return _SEED.sub("", group[0].label).strip("/") or str(group[0].summary["label"])


def answer(runs: Sequence[Run]) -> str:
    """The outcome in sentences with numbers, overload first; with the spread if there are several seeds.

    Only runs with the same traffic are ranked.
    """
    groups = grouped(runs)
    said = [*_rejections(groups), *_overloads(groups)]
    if one_traffic(runs):
        return " ".join([*said, _outcome(groups)])
    by_traffic = by_key(groups, lambda group: traffic(group[0]))
    loads = [_arrivals(each[0][0]) for each in by_traffic.values()]
    apart = f": {'; '.join(loads)}" if len(set(loads)) == len(loads) <= _MOST_LOADS else ""
    said.append(f"The runs had different traffic, so they are not ranked against each other{apart}.")
    for load, each in zip(loads, by_traffic.values(), strict=True):
        if len(each) > 1 and len(by_traffic) <= _MOST_LOADS:
            where = f"At {load}" if "requests/s" in load else f"{load[:1].upper()}{load[1:]}"
            said.append(f"{where}: {_outcome(each)}")
    return " ".join(said)


def _rejections(groups: Sequence[Sequence[Run]]) -> list[str]:
    """For several systems: differing clocks or schedulers, and rejected requests."""
    named = [[{**run.summary, "label": group_label(group)} for run in group] for group in groups]
    if len(named) < 2:
        return []
    return [each for each in (different_clocks(named), rejections(named), by_scheduler(named)) if each]


def _overloads(groups: Sequence[Sequence[Run]]) -> list[str]:
    """A sentence for each overloaded run; for very many, just their number."""
    named = [[{**run.summary, "label": group_label(group)} for run in group] for group in groups]
    lines = overloads(named)
    if len(lines) > _MOST_LOADS:
        return [f"{len(lines)} of {len(groups)} runs are overloaded: requests arrive faster than they leave."]
    if len(groups) == 1 and lines:
        words = overload(named[0])
        return [f"{words[:1].upper()}{words[1:]}."]
    return [f"{line}." for line in lines]


def _outcome(groups: Sequence[Sequence[Run]]) -> str:
    if len(groups[0]) == 1:
        summaries = [group[0].summary for group in groups]
        if len(summaries) > 1:
            return verdict(summaries)
        return " ".join(filter(None, [headline(summaries), in_words(summaries)]))
    by_allocator = [[run.summary for run in group] for group in groups]
    seeds = f"With {len(groups[0])} seeds and 95 % confidence"
    if len(groups) > 1:
        return f"{seeds}, {_difference(by_allocator)}."
    (each,) = by_allocator
    rate = with_spread(figures, interval([REQUESTS_PER_S.read(s) for s in each]))
    said = f"{seeds}, {group_label(groups[0])} finishes {rate} requests/s; {memory(each)}."
    return " ".join(filter(None, [said, in_words(each)]))


def _difference(allocators: Sequence[Sequence[Summary]]) -> str:
    """The fastest against the slowest: requests per second, running requests, waste, with intervals."""
    found = differences(allocators)
    rates = [each for each in found if each.measure == "requests per second" and each.beyond_spread]
    if not rates:
        return "requests per second are not distinguishable given seed noise"
    rate = max(rates, key=lambda each: each.mean)
    others = {each.measure: each for each in found if (each.of, each.to) == (rate.of, rate.to)}
    at_once, waste = others.get("requests at once"), others.get("waste")
    said = f"{rate.of} finishes {rate} as many requests per second as {rate.to}"
    if at_once and at_once.beyond_spread:
        said += f" and holds {at_once} as many at once"
    return said + (f"; it wastes {waste}" if waste and waste.beyond_spread else "")


def differences_in_words(runs: Sequence[Run]) -> list[str]:
    """With several seeds, how the runs differ in each measure; empty for one seed, one run or two loads."""
    groups = grouped(runs)
    if len(groups) < 2 or len(groups[0]) < 2 or not one_traffic(runs):
        return []
    lines = difference_lines([[run.summary for run in group] for group in groups])
    return [f"{line[:1].upper()}{line[1:]}." for line in lines]


def title(runs: Sequence[Run]) -> str:
    """The runs in one line."""
    model, gpu, trace = (_common(runs, read) for read in (_model, _gpu, _trace))
    where = " on ".join(filter(None, (model, gpu)))
    parts = [part for part in (where, trace and f"serving {trace}") if part]
    return " ".join(parts) or ", ".join(run.label for run in runs)


def facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(name, value) of the runs' settings; where runs differ, a value for each."""
    readers: dict[str, Callable[[Run], str]] = {
        "Model": _model,
        "GPU": _gpu,
        "Trace": _trace,
        "Requests": lambda run: count(number(run.summary["requests"].get("submitted"))),
        "Arrivals": _arrivals,
        "Allocator": lambda run: str(run.summary["engine"].get("allocator", "")),
        "Scheduler": lambda run: str(run.summary["engine"].get("scheduler", "")),
        "Replicas": _replicas,
        "KV memory": _kv_memory,
        "Step times": lambda run: str(run.summary.get("cost", {}).get("source", "")),
        "Clock": lambda run: clocks.told([run.summary.get("cost", {})]),
        "Seed": lambda run: str(run.workload.get("seed", "")),
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
    """The value, with the names of its runs unless those imply it."""
    return value if list(labels) == [value] else f"{value} ({', '.join(labels)})"


def notes(runs: Sequence[Run]) -> list[str]:
    """Notes on the numbers, each once, prefixed with the runs they apply to unless that is all of them."""
    return noted((run.label, run.summary.get("notes", [])) for run in runs)


def _common(runs: Sequence[Run], read: Callable[[Run], str]) -> str:
    values = {read(run) for run in runs}
    return values.pop() if len(values) == 1 else ""


def _name(value: object) -> str:
    return str(value.get("name", "")) if isinstance(value, Mapping) else ""


def _model(run: Run) -> str:
    return _name(run.config.get("scenario", {}).get("model"))


def _kv_memory(run: Run) -> str:
    tokens = f"{count(number(run.summary['memory'].get('capacity_tokens')))} tokens"
    return f"{tokens} a replica" if run.replicas else tokens


def _replicas(run: Run) -> str:
    fleet = run.summary.get("fleet") or {}
    return f"{count(number(fleet.get('replicas')))}, router {fleet.get('router')}" if fleet else ""


def _gpu(run: Run) -> str:
    scenario = run.config.get("scenario", {})
    name, several = _name(scenario.get("gpu")), number(scenario.get("tensor_parallel_size")) or 1
    return f"{several:.0f} × {name}" if name and several > 1 else name


def _trace(run: Run) -> str:
    return str(run.workload.get("trace", "")).rpartition("/")[2]


def _arrivals(run: Run) -> str:
    clients, rate, kind = (run.workload.get(name) for name in ("clients", "request_rate", "arrivals"))
    if clients:
        return f"{clients} clients, each asking when it has its answer"
    if rate == "inf":
        return "all at once"
    if rate is not None:
        if kind == "gamma" and run.workload.get("burstiness") == 1:
            kind = "Poisson"
        return f"{figures(number(rate))} requests/s" + (f" ({kind})" if kind else "")
    return "as in the trace" if run.workload else ""
