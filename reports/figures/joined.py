"""Join runs into curves: runs that differ in one setting become points over that setting.

A curve is named after the label of its runs, plus any other settings in which runs with that label differ.
Runs whose config.json differs only in the seed are one point: their mean, with its 95 % confidence interval.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import isfinite
from typing import Any

from kvsim.reports.alike import seed_of
from kvsim.reports.grouping import by_key
from kvsim.reports.rundir.run import Run
from kvsim.reports.seeds.intervals import Interval, interval

_LOADS = ("request_rate", "clients", "rate_scale")
_PORTION = ("num_prompts", "start", "duration")
"""How much of the traffic is used; may differ between the points of a curve over the load."""


@dataclass(frozen=True)
class Curve:
    """Runs by the value of the setting, in ascending order."""

    name: str
    runs: dict[float, list[Run]]

    def points(self, number: Callable[[Run], float | None]) -> list[tuple[float, Interval]]:
        """(setting, mean with its interval) for each point at which all seeds have the number."""
        found = [(x, interval([number(run) for run in runs])) for x, runs in self.runs.items()]
        return [(x, interval) for x, interval in found if interval is not None]


def curves(runs: Sequence[Run], key: str) -> list[Curve]:
    """The runs that have the setting, grouped by all other differences; in the order of the runs."""
    having = [(run, x) for run in runs if (x := setting(run, key)) is not None]
    found: dict[str, dict[float, dict[str, Run]]] = {}
    short: dict[str, str] = {}
    for label, members in by_key(having, lambda each: str(each[0].summary["label"])).items():
        apart = _apart(members, key)
        for run, x in members:
            name = _named(label, run, apart)
            short[name] = _named(label, run, [each for each in apart if not _told_by(each, apart)])
            by_seed = found.setdefault(name, {}).setdefault(x, {})
            by_seed.setdefault(str(seed_of(run)), run)  # a repeated run is not a second seed
    names = short if len(set(short.values())) == len(short) else {name: name for name in short}
    return [
        Curve(names[name], {x: list(by_seed.values()) for x, by_seed in sorted(points.items())})
        for name, points in found.items()
    ]


def _told_by(name: str, names: Sequence[str]) -> bool:
    """Whether the name of a model or GPU already implies this difference."""
    whole, _, part = name.partition(" ")
    return bool(part) and whole in names


def _named(label: str, run: Run, apart: Sequence[str]) -> str:
    """The label, and the settings that distinguish the curve."""
    choices = _choices(run)
    return ", ".join([label, *(f"{each.replace('_', ' ')} {choices.get(each)}" for each in apart)])


def _apart(members: Sequence[tuple[Run, float]], key: str) -> list[str]:
    """The settings, except `key` and the seed, that divide these runs into curves.

    These are the settings that differ at one value of the key, where runs should differ only in the seed; and
    those that differ along it, except how much of the same traffic was used.
    """
    along = _PORTION if key in _LOADS else ()
    every = [run for run, _ in members]
    names = {name: None for name in _differing(every) if name != key and name not in along}
    for alike in by_key(members, lambda each: each[1]).values():
        names |= dict.fromkeys(_differing([run for run, _ in alike]))
    return list(names)


def _differing(runs: Sequence[Run]) -> list[str]:
    chosen = [_choices(run) for run in runs]
    names = dict.fromkeys(name for choices in chosen for name in choices)
    return [name for name in names if len({json.dumps(each.get(name)) for each in chosen}) > 1]


def _choices(run: Run) -> dict[str, Any]:
    """config.json flattened, without the seed and derived values.

    The memory size is in tokens even if it was given in blocks. A model or GPU becomes `model` (its name),
    `model layers` and so on; a measured profile becomes a digest of its contents.
    """
    config = {name: part for name, part in run.config.items() if name not in ("workload", "scenario")}
    config.pop("kv_capacity", None)  # derived from the scenario
    scenario, workload = dict(run.config.get("scenario", {})), dict(run.config.get("workload", {}))
    workload.pop("seed", None)
    engine = dict(scenario.pop("engine", {}))
    blocks = scenario.pop("num_gpu_blocks", None)
    if blocks is not None:
        scenario["kv_tokens"] = blocks * engine.get("block_size", 1)
    if scenario.get("profile") is not None:
        text = json.dumps(scenario["profile"], sort_keys=True)
        scenario["profile"] = sha256(text.encode()).hexdigest()[:8]
    own = engine.pop("options", {})
    return {**_flat(config), **_flat(scenario), **engine, **own, **workload}


def _flat(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a description under prefixed names: `model`, `model layers`, ..."""
    flat: dict[str, Any] = {}
    for name, value in choices.items():
        if isinstance(value, Mapping):
            flat |= {f"{name} {part}" if part != "name" else name: each for part, each in value.items()}
        else:
            flat[name] = value
    return flat


def setting(run: Run, key: str) -> float | None:
    """A choice as a finite number."""
    value = _choices(run).get(key)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if isfinite(number) else None
