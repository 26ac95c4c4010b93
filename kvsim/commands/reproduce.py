"""Run `sim reproduce`: simulate a paper's figures, compare them with the published ones, write and report."""

import os
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from kvsim import workloads
from kvsim.commands.run import place
from kvsim.reports.papers import checks, declared, report, running, terminal
from kvsim.reports.papers.cells import cache_directory
from kvsim.sim.files.stopping import Stopped
from kvsim.sim.options.outputs import Output
from kvsim.workloads.catalogue import entries, kept


def reproduced(paper: str, figure: str | None, *, quick: bool, jobs: int | None, output: Output) -> None:
    """Run a reproduction; if stopped, it keeps the finished simulations."""
    found = declared.read_paper(paper)
    figures, to_fetch = with_traces(found, declared.chosen_figures(found, figure))
    with place(output, paper) as held:
        assert held is not None
        try:
            findings = running.carry_out_all(
                found,
                figures,
                workloads.build,
                quick=quick,
                jobs=(os.cpu_count() or 1) if jobs is None else jobs,
                store=cache_directory(),
            )
        except KeyboardInterrupt as stop:
            done = "the simulations that are done are kept"
            code = getattr(stop, "exit_code", 130)
            raise Stopped(f"interrupted: {done}; the same command continues", code) from None
        results = [checks.judged(found, each, findings) for each in figures]
        report.write_report(held, found, findings, results, quick=quick, pictures=output)
    console = Console(highlight=False)
    console.print(terminal.figure_tables(results))
    if quick:
        console.print(f"\nQuick: {terminal.less(results)}. Indicative only.")
    if to_fetch:
        console.print(f"\nLeft out, until fetched: {'; '.join(to_fetch)}", markup=False)
    console.print(
        f"\n{findings.runs:,} simulations, {findings.cpu_s:,.0f} CPU s; spent now: "
        f"{findings.spent_cpu_s:,.0f} CPU s\nwritten to {held.path}",
        markup=False,
        soft_wrap=True,
    )


def with_traces(
    paper: declared.Paper, figures: Sequence[declared.Figure]
) -> tuple[list[declared.Figure], list[str]]:
    """The figures without the panels whose traces are not here, and how to get those.

    Raises
    ------
    KvsimError
        Nothing is left.
    """
    left, to_fetch, absent = [], [], []
    for figure in figures:
        missing = {
            panel: [name for name in names if name in entries() and not entries()[name].here]
            for panel, names in declared.traces_of(paper, figure).items()
        }
        panels = {name: panel for name, panel in figure.panels.items() if not missing[name]}
        absent = [name for names in missing.values() for name in names]
        if absent:
            to_fetch.append(f"Figure {figure.number}, sim traces fetch {', '.join(absent)}")
        if panels:
            left.append(replace(figure, panels=panels))
    if not left:
        kept(absent[0])
    return left, to_fetch
