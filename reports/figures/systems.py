"""Systems: single runs, or runs that differ only in the seed; each has one name and colour in figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from statistics import fmean

from kvsim.reports import clocks, palette
from kvsim.reports.alike import by_seed, one_traffic, seed_of
from kvsim.reports.colours import parts_of
from kvsim.reports.palette import Summary
from kvsim.reports.ranked import all_rejected, by_scheduler, different_clocks, ranked, rejections
from kvsim.reports.rundir.run import Run
from kvsim.reports.seeds.intervals import Interval, alike, interval

_MOST_LETTERS = 28


@dataclass(frozen=True)
class System:
    """Runs of different seeds, or a single run; at least one."""

    full_name: str
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """The name, shortened if it is long."""
        return short(self.full_name)

    @property
    def first(self) -> Run:
        """The run to show if only one can be shown."""
        return self.runs[0]

    @property
    def parts(self) -> dict[str, str]:
        """The names that determine the system's colour."""
        return parts_of(self.first.config)

    @property
    def is_fleet(self) -> bool:
        """Whether it has several replicas; means over time are then per replica."""
        return bool(self.first.summary.get("replicas"))

    @property
    def summaries(self) -> list[Summary]:
        """The summaries of all seeds; all describe memory over the same part of the run."""
        return alike([run.summary for run in self.runs])

    def number(self, value: Callable[[Summary], object]) -> Interval | None:
        """A number of the summary over the seeds; None if a seed lacks it."""
        return interval([palette.number(value(summary)) for summary in self.summaries])


def under_loads(systems: Sequence[System]) -> str:
    """For a headline with all systems' numbers: what makes them incomparable, if anything."""
    if not one_traffic([run for system in systems for run in system.runs]):
        return ", under different loads"
    if different_clocks(_summaries(systems)):
        return ", on different clocks"
    return "" if all(ranked(_summaries(systems))) else ", over those served"


def rankable(systems: Sequence[System]) -> bool:
    """Whether all had the same traffic and clock and served the same requests, so they can be ranked."""
    return not under_loads(systems)


def first_words(systems: Sequence[System]) -> str:
    """The beginning of every headline: differing clocks, rejected requests; usually ""."""
    found = _summaries(systems)
    return " ".join(filter(None, [different_clocks(found), rejections(found)]))


def none_served(systems: Sequence[System]) -> bool:
    """Whether all requests of all systems were rejected."""
    return bool(all_rejected(_summaries(systems)))


def last_words(systems: Sequence[System]) -> str:
    """The text at the foot of every figure: the clock, its errors, differing schedulers."""
    found = _summaries(systems)
    said = f"clock: {clocks.told([each.get('cost', {}) for system in found for each in system])}"
    return " ".join(filter(None, [f"{said}.", by_scheduler(found)]))


def _summaries(systems: Sequence[System]) -> list[list[Summary]]:
    return [[{**run.summary, "label": system.name} for run in system.runs] for system in systems]


def shares_of_all(systems: Sequence[System]) -> tuple[list[dict[str, float]], list[Interval], bool]:
    """Per cent of the KV memory by kind, the waste, and whether both are for the saturated part.

    Means over the seeds, over the same part of the run for all systems.
    """
    by_system, saturated = palette.shares_by_system([[run.summary for run in each.runs] for each in systems])
    means = [{kind: fmean(s[kind] for s in seeds) for kind in palette.KINDS} for seeds in by_system]
    wastes = [interval([palette.waste(percent) for percent in seeds]) for seeds in by_system]
    return means, [each for each in wastes if each is not None], saturated


def systems(runs: Sequence[Run]) -> list[System]:
    """Group runs by all settings except the seed, in the order of their first runs; a fleet is one system."""
    groups = by_seed([run.as_one for run in runs])
    names = [_name(group) for group in groups]
    if len(set(names)) < len(names):
        names = [group[0].label for group in groups]
    return [System(name, tuple(group)) for name, group in zip(names, groups, strict=True)]


def short(text: str, most: int = _MOST_LETTERS) -> str:
    """Shorten the text to at most `most` characters by cutting its middle: names often differ at the ends."""
    tail = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def _name(group: Sequence[Run]) -> str:
    """The common prefix of the labels without the seed, else the first label."""
    if len(group) == 1:
        return group[0].label
    plain = {_without_seed(run.label, seed_of(run)) for run in group}
    if len(plain) == 1:
        return plain.pop() or str(group[0].summary["label"])
    common = commonprefix([run.label for run in group]).rstrip(" ,-_/.")  # noqa: RUF071 - letters
    return common or str(group[0].summary["label"])


def _without_seed(label: str, seed: object) -> str:
    for mark in (f", seed {seed}", f"/seed-{seed}", f"seed-{seed}/", f"seed-{seed}"):
        if label.endswith(mark) or f"{mark}/" in label or (mark.endswith("/") and label.startswith(mark)):
            return label.replace(mark, "", 1)
    return label


def which_seed(found: Sequence[System]) -> str:
    """For panels that show one of several seeds: which one, and of how many; else ""."""
    seeds = sorted(
        {f", seed {seed_of(each.first)} (of {len(each.runs)} seeds)" for each in found if len(each.runs) > 1}
    )
    return seeds[0] if len(seeds) == 1 else ", the first seed of several" if seeds else ""
