"""What a report says in words and in its table of numbers: what was run, on what, and what came out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reports import palette
from reports.palette import Summary, count, figures, number, seconds
from reports.rundir import Run
from reports.terminal import headline, verdict


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
        replace(run, label=name, summary=dict(run.summary) | {"label": name})
        for run, name in zip(runs, names, strict=True)
    ]


def answer(runs: Sequence[Run]) -> str:
    """The outcome in one sentence with numbers."""
    summaries = [run.summary for run in runs]
    return verdict(summaries) if len(summaries) > 1 else headline(summaries[0])


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
        if len(each) == 1:
            told.append((name, next(iter(each))))
        elif each:
            whose = {
                value: [run.label for run, v in zip(runs, values, strict=True) if v == value]
                for value in each
            }
            told.append((name, "; ".join(_owned(value, who) for value, who in whose.items())))
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


def numbers(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Rows of the table of numbers: a name, a text per run, and which of them are the best."""
    rows = []
    for name, read, write, best in _ROWS:
        values = [read(run.summary) for run in runs]
        texts = [write(value) for value in values]
        known = [value for value in values if value is not None]
        if name in _ONLY_IF_ANY and not any(known):
            continue
        top = write(best(known)) if best and known and len(set(texts)) > 1 else None
        rows.append({"name": name, "texts": texts, "best": [text == top for text in texts]})
    return rows


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _of(*path: str) -> Callable[[Summary], float | None]:
    def read(summary: Summary) -> float | None:
        value: object = summary
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return number(value)

    return read


def _preemptions(summary: Summary) -> float:
    engine = summary["engine"]
    return sum(number(engine.get(f"preemptions_{how}")) or 0.0 for how in ("recompute", "swap"))


_Row = tuple[
    str, Callable[[Summary], float | None], Callable[[float | None], str], Callable[..., float] | None
]
_ROWS: tuple[_Row, ...] = (
    ("Requests finished", _of("requests", "finished"), count, max),
    ("Requests rejected", _of("requests", "rejected"), count, min),
    ("Requests per second", _of("throughput", "requests_per_s"), figures, max),
    ("Output tokens per second", _of("throughput", "output_tokens_per_s"), figures, max),
    ("Requests at once, mean", _of("engine", "mean_running"), figures, None),
    ("Requests at once, most", _of("engine", "max_running"), count, None),
    ("Time to first token, median", _of("latency", "ttft_s", "p50"), seconds, min),
    ("Time to first token, 99th percentile", _of("latency", "ttft_s", "p99"), seconds, min),
    ("Time per output token, median", _of("latency", "tpot_s", "p50"), seconds, min),
    ("End to end, median", _of("latency", "e2e_s", "p50"), seconds, min),
    ("KV memory that holds tokens", lambda s: palette.shares(s)[0]["token"], _percent, max),
    ("KV memory wasted", lambda s: palette.waste(palette.shares(s)[0]), _percent, min),
    ("KV memory saved by sharing", _of("memory", "saved_by_sharing"), _percent, max),
    ("Tokens found in the prefix cache", _of("engine", "prefix_hit_tokens"), count, max),
    ("Preemptions", _preemptions, count, min),
)
_ONLY_IF_ANY = (
    "Requests rejected",
    "KV memory saved by sharing",
    "Tokens found in the prefix cache",
    "Preemptions",
)


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
