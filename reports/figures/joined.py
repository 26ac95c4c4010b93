"""Runs joined into curves: those that differ in one setting alone, over that setting.

A curve is named by the label of its runs and by whatever else differs among the runs of that label. Runs
that differ only in the seed are one point: their mean, and its 95 % confidence interval.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from kvsim.reports.figures.systems import spread
from kvsim.reports.rundir.run import Run
from kvsim.reports.seeds.intervals import Interval

_BESIDE = ("seed", "num_prompts", "start", "duration", "num_gpu_blocks", "kv_tokens", "source")
"""What may differ within a curve: another sample of the same traffic, the same memory in other units."""


@dataclass(frozen=True)
class Curve:
    """Runs by the value of the setting, in its order; `place` chooses the colour."""

    name: str
    place: int
    runs: dict[float, list[Run]]

    def points(self, number: Callable[[Run], float | None]) -> list[tuple[float, Interval]]:
        """(setting, mean and its interval) where all seeds have the number."""
        found = [(x, spread([number(run) for run in runs])) for x, runs in self.runs.items()]
        return [(x, interval) for x, interval in found if interval is not None]


def setting(run: Run, key: str) -> float | None:
    """A setting of a run as a finite number."""
    value = _settings(run).get(key)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return number if isfinite(number) else None


def curves(runs: Sequence[Run], key: str) -> list[Curve]:
    """The runs that have the setting, by what else sets them apart; in the order of the runs."""
    having = [(run, x) for run in runs if (x := setting(run, key)) is not None]
    labels: dict[str, list[tuple[Run, float]]] = defaultdict(list)
    for run, x in having:
        labels[str(run.summary["label"])].append((run, x))
    found: dict[str, dict[float, list[Run]]] = {}
    for label, members in labels.items():
        apart = _differing([run for run, _ in members], key)
        for run, x in members:
            settings = _settings(run)
            name = ", ".join([label, *(f"{each.replace('_', ' ')} {settings.get(each)}" for each in apart)])
            found.setdefault(name, {}).setdefault(x, []).append(run)
    return [Curve(name, place, dict(sorted(found[name].items()))) for place, name in enumerate(found)]


def _differing(runs: Sequence[Run], key: str) -> list[str]:
    """The settings, but for the key, that are not the same in all of them."""
    all_settings = [_settings(run) for run in runs]
    names = dict.fromkeys(name for settings in all_settings for name in settings)
    return [
        name
        for name in names
        if name != key and name not in _BESIDE and len({str(each.get(name)) for each in all_settings}) > 1
    ]


def _settings(run: Run) -> dict[str, Any]:
    """What was chosen, flat: model and GPU by their names."""
    scenario, workload = run.config.get("scenario", {}), run.config.get("workload", {})
    named = {
        part: scenario[part].get("name")
        for part in ("model", "gpu")
        if isinstance(scenario.get(part), Mapping)
    }
    engine = scenario.get("engine", {})
    plain = {name: value for name, value in scenario.items() if not isinstance(value, Mapping)}
    return {**plain, **engine, **named, **workload}
