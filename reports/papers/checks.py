"""Published beside simulated: the rows of a figure's table, its checks and its verdict.

A check names what must hold (`kind`) and for which panels, systems and values of the figure; all of them if
it names none. A figure agrees if all of its checks do. Checks consider only the chosen answers; the range
over the open choices is shown beside them and does not excuse a miss.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from kvsim.reports.grouping import by_key
from kvsim.reports.papers.declared import Figure, Paper, Table
from kvsim.reports.papers.running import Findings

AGREES, MISSES = "agrees", "misses"
LEAST_LEAD = 0.5
"""Of how far a published ratio is from 1: 1.18 within 25 % alone would agree at 1.00, where nobody leads."""
NOT_NUMBERS = ("points", "cell", "settings", "beyond")
"""Keys of a panel's system other than its published numbers."""


@dataclass
class Row:
    """One published number beside the simulated one."""

    panel: str
    system: str
    value: str
    name: str
    published: float | None
    """None: a number that the paper does not state, shown beside those that it does."""
    simulated: float | None
    low: float | None
    high: float | None
    """The range over the open choices, the chosen one included."""
    band: str = ""
    verdict: str = ""

    @property
    def percent(self) -> float | None:
        """The deviation of the simulated number from the published one, in percent."""
        if self.simulated is None or not self.published:
            return None
        return 100 * (self.simulated / self.published - 1)


@dataclass(frozen=True)
class Check:
    """The result of one check."""

    what: str
    verdict: str
    detail: str
    decides: bool = True
    """Whether the figure's verdict depends on it."""
    cause: str = ""
    """Why it misses, if it does."""
    remark: str = ""


@dataclass(frozen=True)
class Judged:
    """A figure with its rows, checks and verdict."""

    figure: Figure
    rows: list[Row]
    checks: list[Check]
    choices: list[Table] = field(default_factory=list)
    """The effect of each open choice: name, panel, system, value, chosen, other."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Requests that the runs of a system could not serve, if any."""

    @property
    def verdict(self) -> str:
        """Whether all deciding checks agree."""
        deciding = (check.verdict == AGREES for check in self.checks if check.decides)
        return AGREES if all(deciding) else MISSES

    def as_json(self) -> Table:
        """The judged figure in JSON's types."""
        return {
            "figure": self.figure.number,
            "title": self.figure.title,
            "unit": self.figure.settings["unit"],
            "verdict": self.verdict,
            "checks": [asdict(check) for check in self.checks],
            "rows": [asdict(row) | {"percent": row.percent} for row in self.rows],
            "open_choices": self.choices,
            "rejected_requests": self.rejected,
        }


def judged(paper: Paper, figure: Figure, findings: Findings) -> Judged:
    """The table and the verdict of one figure."""
    rows, influences, rejected = [], [], {}
    names = figure.settings.get("names", {})
    for panel, table in figure.panels.items():
        for system, published in table["systems"].items():
            chosen = findings.of(figure.number, panel, system)
            if chosen is not None and chosen.rejected:
                rejected[f"{panel}, {system}"] = chosen.rejected
            for value in dict.fromkeys([*published, *figure.settings.get("shown", [])]):
                if value in NOT_NUMBERS or chosen is None or value not in chosen.values:
                    continue
                number = published.get(value)
                simulated = chosen.values.get(value)
                others = {}
                for choice in paper.choices:
                    other = findings.of(figure.number, panel, system, choice.name)
                    if other is not None:
                        others[choice.name] = other.values.get(value)
                found = [x for x in (simulated, *others.values()) if x is not None]
                row = Row(panel, system, value, names.get(value, value), number, simulated, None, None)
                if any(other is not None for other in others.values()):
                    row.low, row.high = min(found), max(found)
                rows.append(row)
                influences += [
                    {"choice": name, "panel": panel, "system": system, "value": row.name}
                    | {"chosen": simulated, "other": other}
                    for name, other in others.items()
                ]
    carried_out = {row.panel for row in rows}
    asked = [check for check in figure.checks if carried_out.intersection(check.get("panels", figure.panels))]
    checks = [_checked(check, _chosen_rows(rows, check)) for check in asked]
    return Judged(figure, rows, checks, influences, rejected)


def _chosen_rows(rows: Iterable[Row], check: Table) -> list[Row]:
    """The rows that a check covers, in its order of systems."""
    found = [
        row
        for row in rows
        if row.panel in check.get("panels", [row.panel]) and row.value in check.get("values", [row.value])
    ]
    if "of" in check:
        return [row for row in found if row.system in (check["of"], *check["over"])]
    order = check.get("systems")
    if order is None:
        return found
    return sorted((row for row in found if row.system in order), key=lambda row: order.index(row.system))


def _checked(check: Table, rows: list[Row]) -> Check:
    if not rows or any(row.simulated is None for row in rows):
        agrees, detail = False, "nothing to compare"
    else:
        agrees, detail = KINDS[check["kind"]](check, rows)
    return Check(
        what=check["what"],
        verdict=AGREES if agrees else MISSES,
        detail=detail,
        decides=check.get("decides", True),
        cause="" if agrees else check.get("cause", ""),
        remark=check.get("remark", ""),
    )


# -- kinds of checks --------------------------------------------------------------------------------

Answer = tuple[bool, str]


def _within(check: Table, rows: list[Row]) -> Answer:
    good = 0
    for row in rows:
        if "points" in check:
            far, band = abs(row.simulated - row.published), check["points"]
            row.band = f"± {band:g}"
        else:
            far, band = abs(row.percent or 0.0), check["relative"]
            row.band = f"± {band:g} %"
        row.verdict = AGREES if far <= band else MISSES
        good += row.verdict == AGREES
    needed = check.get("enough", len(rows))
    told = f"{good} of {len(rows)}"
    return good >= needed, told if needed == len(rows) else f"{told}, {needed} needed"


def _at_least(check: Table, rows: list[Row]) -> Answer:
    least = min(row.simulated or 0.0 for row in rows)
    return least >= check["least"], f"{least:.3g}"


def _order(check: Table, rows: list[Row]) -> Answer:
    wrong, panels = [], by_key(rows, _panel)
    for panel, own in panels.items():
        ranked = sorted(own, key=lambda row: row.published or 0.0)
        for one, other in pairwise(ranked):
            tie = abs(one.published / other.published - 1) < 0.01
            if one.simulated > other.simulated and not tie:
                wrong.append(f"{panel}: {one.system} above {other.system}")
    return not wrong, "; ".join(wrong) or f"{len(panels)} of {len(panels)} panels"


def _ratio(check: Table, rows: list[Row]) -> Answer:
    good, told = True, []
    for panel, own in by_key(rows, _panel).items():
        of = next(row for row in own if row.system == check["of"])
        for row in own:
            if row is of:
                continue
            published, simulated = of.published / row.published, of.simulated / row.simulated
            good &= _is_like(published, simulated, check["relative"])
            told.append(f"{panel}: {simulated:.2f} ({published:.2f})")
    return good, "; ".join(told)


def _is_like(published: float, simulated: float, percent: float) -> bool:
    """Whether a ratio is within some percent of the published one, with at least `LEAST_LEAD` of its lead."""
    lead = published - 1
    keeps_lead = (simulated - 1) * lead >= LEAST_LEAD * lead**2
    return keeps_lead and abs(simulated / published - 1) <= percent / 100


def _over(check: Table, rows: list[Row]) -> Answer:
    """The ratio of two systems, where the paper states no other number."""
    good, told = True, []
    for panel, own in by_key(rows, _panel).items():
        pair = {row.system: row.simulated or 0.0 for row in own}
        times = pair[check["of"]] / pair[check["over"][0]]
        if "published" in check:
            good &= _is_like(check["published"], times, check["relative"])
            told.append(f"{panel}: {times:.2f} ({check['published']:.2f})")
        else:
            good &= times >= check["least"]
            told.append(f"{panel}: {times:.2f}")
    return good, "; ".join(told)


def _spread(check: Table, rows: list[Row]) -> Answer:
    found = [row.simulated or 0.0 for row in rows]
    far = 100 * (max(found) / min(found) - 1)
    return far <= check["relative"], f"{far:.1f} % apart"


def _in_range(check: Table, rows: list[Row]) -> Answer:
    inside = [
        row.low is not None
        and row.high is not None
        and row.published is not None
        and row.low <= row.published <= row.high
        for row in rows
    ]
    return all(inside), f"{sum(inside)} of {len(inside)}"


def _valley(check: Table, rows: list[Row]) -> Answer:
    low, high = check["between"]
    curve = [(float(row.value), row.simulated or 0.0) for row in rows]
    best, least = min(curve, key=lambda point: point[1])
    flanks = min(curve[0][1], curve[-1][1]) / least
    return low <= best <= high and flanks >= 1.5, f"best at {best:g}, ends at least {flanks:.3g} times that"


def _times(check: Table, rows: list[Row]) -> Answer:
    pairs = {row.value: row.simulated or 0.0 for row in rows}
    times = pairs[check["values"][0]] / pairs[check["values"][1]]
    return times >= check["least"], f"{times:.3g} times"


def _cross(check: Table, rows: list[Row]) -> Answer:
    one, other = check["systems"]
    pairs = _by_value(rows)
    ahead = {float(value): pair[one] - pair[other] for value, pair in pairs.items()}
    low, high = check["between"]
    where = next((x for x in sorted(ahead) if ahead[x] <= 0), None)
    agrees = ahead[low] > 0 >= ahead[high]
    return agrees, f"from {where:g} on" if where is not None else "never"


def _alike(check: Table, rows: list[Row]) -> Answer:
    one, other = check["systems"]
    far = max(abs(100 * (pair[one] / pair[other] - 1)) for pair in _by_value(rows).values())
    return far <= check["relative"], f"at most {far:.1f} % apart"


def _slower(check: Table, rows: list[Row]) -> Answer:
    one, other = check["systems"]
    (pair,) = _by_value(rows).values()
    return pair[one] > pair[other], f"{pair[one]:.3g} and {pair[other]:.3g}"


def _panel(row: Row) -> str:
    return row.panel


def _by_value(rows: list[Row]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row.value, {})[row.system] = row.simulated or 0.0
    return found


KINDS: dict[str, Callable[[Any, list[Row]], Answer]] = {
    "within": _within,
    "at least": _at_least,
    "order": _order,
    "ratio": _ratio,
    "over": _over,
    "spread": _spread,
    "in range": _in_range,
    "valley": _valley,
    "times": _times,
    "cross": _cross,
    "alike": _alike,
    "slower": _slower,
}
