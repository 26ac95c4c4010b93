"""The output of `sim replay`: measured beside simulated, where they differ, the fit, the what-if runs."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvsim.reports.fitting import ruled_table
from kvsim.sim.bench.compared import Compared
from kvsim.sim.bench.fitting import Fitted
from kvsim.sim.bench.measured import PER_S, Key, MeasuredRun
from kvsim.sim.bench.why import Term
from kvsim.sim.counted import signed_percent

WHAT = {"host": "the host's time", "scale": "every step's time"}


def replay_report(  # noqa: PLR0917 - the parts of a replay
    run: MeasuredRun,
    compared: Sequence[Compared],
    others: Mapping[str, Mapping[Key, float]],
    terms: Sequence[Term],
    fitted: Fitted | None,
    changes: str,
    clock: Sequence[str],
    notes: Sequence[str],
) -> RenderableType:
    """The whole report, for a terminal."""
    parts: list[RenderableType] = [Text(_heading(run), style="bold"), "", _table(compared, others), ""]
    parts += [_terms(terms), ""]
    if fitted is not None:
        parts += [Text(_fitted_words(fitted)), ""]
    if changes:
        of = "the fitted server" if fitted is not None else "the simulated server"
        parts += [Text(f"What if: {of} with {changes}."), ""]
    parts += [Text(line) for line in clock]
    parts += [Text(f"- {note}", style="dim") for note in notes]
    return Group(*parts)


def _heading(run: MeasuredRun) -> str:
    how = "arrivals as recorded"
    if run.closed:
        how = f"a closed loop of {run.clients:,} client{'s' * (run.clients != 1)}"
    elif run.requests is None or run.requests.start_s is None:
        how = "arrivals by the rate"
    size = f"{run.input_tokens:,.0f} + {run.output_tokens:,.0f} tokens"
    if run.requests is not None:
        means = run.requests.input_tokens.mean(), run.requests.output_tokens.mean()
        size = f"{means[0]:,.0f} + {means[1]:,.0f} tokens"
    return f"{run.name}: {run.count:,} requests of {run.tool}, {size} each, {how}"


def _table(compared: Sequence[Compared], others: Mapping[str, Mapping[Key, float]]) -> Table:
    table = ruled_table("", "measured", "simulated", "off", *others, padding=(0, 2, 0, 0))
    before = None
    for each in compared:
        if before not in (None, each.what) and each.statistic != PER_S:
            table.add_row("")
        before = each.what
        key = each.what, each.statistic
        values = [each.measured, each.simulated]
        cells = [value_in_words(key, value) for value in values] + [signed_percent(each.off)]
        cells += [value_in_words(key, numbers[key]) if key in numbers else "-" for numbers in others.values()]
        table.add_row(quantity_in_words(key), *cells)
    return table


def quantity_in_words(key: Key) -> str:
    """The name of a row of the table, with its unit."""
    what, statistic = key
    if statistic == PER_S:
        return f"{what}/s"
    return f"{what} {statistic} ({_unit(what)})"


def _unit(what: str) -> str:
    return "s" if what in ("TTFT", "E2E") else "ms"


def value_in_words(key: Key, value: float) -> str:
    """Format seconds or requests per second in the unit of the row."""
    what, statistic = key
    if statistic == PER_S:
        return f"{value:,.1f}" if value >= 100 else f"{value:.3g}"
    scaled = value if _unit(what) == "s" else 1e3 * value
    return f"{scaled:,.1f}" if scaled >= 1000 else f"{scaled:.3g}"


def _terms(terms: Sequence[Term]) -> RenderableType:
    known = [each.seconds for each in terms if each.seconds is not None]
    whole = sum(known)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for each in terms:
        table.add_row(each.name, "" if each.seconds is None else f"{each.seconds:+.3f} s", each.says)
    title = f"Simulated minus measured mean E2E: {whole:+.3f} s" if known else "Of the simulated server:"
    return Group(Text(title), Padding(table, (0, 0, 0, 2)))


def _fitted_words(fitted: Fitted) -> str:
    span = "one number, so no interval"
    if fitted.low is not None and fitted.high is not None:
        span = f"95 % interval {fitted.low:.3f} to {fitted.high:.3f}"
    return (
        f"Fitted to this run's TPOT: {WHAT[fitted.kind]} x {fitted.factor:.3f} ({span}). "
        f"The same in sim run: {fitted.option}"
    )
