"""fairness: service per client over time; for several systems, the gap between clients and the latency.

Service is prompt tokens + 2 x answer tokens (sim/record/service.py). Requests must name their client.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from kvsim.reports import palette
from kvsim.reports.figures import pieces
from kvsim.reports.figures.choices import CannotDraw, Choices
from kvsim.reports.figures.sheet import new_sheet
from kvsim.reports.figures.systems import System
from kvsim.reports.palette import Summary
from kvsim.reports.quantities import TTFT_P50
from kvsim.sim.record.service import INSTANTS, names_of, served_by

MOST_CLIENTS = 8


def has_clients(system: System) -> bool:
    """Whether a system's requests name their client."""
    return all("clients" in (summary.get("service") or {}) for summary in system.summaries)


def fairness(systems: Sequence[System], choices: Choices) -> Figure:
    """Service per client over time, or a mark per system."""
    if not all(map(has_clients, systems)):
        raise CannotDraw("figure fairness needs requests with clients (clients_mix, or a column client)")
    return _over_time(systems[0], choices) if len(systems) == 1 else _compared(systems, choices)


def _over_time(system: System, choices: Choices) -> Figure:
    style, table = choices.style, system.first.columns.requests
    names = names_of(table)
    clients, counts = np.unique(names, return_counts=True)
    shown = [str(clients[place]) for place in np.argsort(-counts, kind="stable")[:MOST_CLIENTS]]
    finish_s = np.asarray(table["finish_s"], dtype=np.float64)
    end = float(np.nanmax(finish_s, initial=0.0))
    instants, done = np.linspace(0.0, end, INSTANTS), ~np.isnan(finish_s)
    curves = [served_by(table, done & (names == client), instants) / 1000 for client in sorted(shown)]
    figure = new_sheet(style, 3.4, f"{system.name}: {_said(system, len(clients))}")
    axes = figure.subplots()
    looks = [style.other(place) for place in range(len(curves))]
    for curve, look in zip(curves, looks, strict=True):
        axes.plot(instants, curve, color=look.colour, linestyle=look.dash, linewidth=1.1 * style.line)
    axes.grid(axis="y")
    axes.set(xlim=(0, end or 1), ylim=(0, None), xlabel="time (s)", ylabel="service\n(1,000 weighted tokens)")
    pieces.systems_below(figure, style, [f"client {client}" for client in sorted(shown)], looks)
    return figure


def _said(system: System, clients: int) -> str:
    apart = system.number(_apart)
    if clients < 2:
        return "a single client gets all of the service"
    most = palette.count(apart.mean if apart else 0)
    return f"clients that both waited were up to {most} weighted tokens apart"


def _compared(systems: Sequence[System], choices: Choices) -> Figure:
    style = choices.style
    found = [(system.number(_apart), system.number(TTFT_P50.read)) for system in systems]
    known = [(apart.mean, place) for place, (apart, ttft) in enumerate(found) if apart and ttft]
    names = _names(systems)
    figure = new_sheet(style, 4.0, f"{_fairest(known, names)}; to the left is sooner")
    axes = figure.subplots()
    axes.grid()
    looks = style.looks([system.parts for system in systems])
    for look, (apart, ttft) in zip(looks, found, strict=True):
        if not (apart and ttft):
            continue
        axes.plot(ttft.mean, apart.mean / 1000, look.marker, color=look.colour, markersize=4.5 * style.line)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("median time to first token (s)")
    axes.set_ylabel("clients apart\n(1,000 weighted tokens)")
    pieces.systems_below(figure, style, names, looks, marker=True)
    return figure


def _fairest(known: Sequence[tuple[float, int]], names: Sequence[str]) -> str:
    """The system with the smallest gap between clients, unless all are equal."""
    apart = {palette.count(each) for each, _ in known}
    if len(apart) == 1 < len(known):
        who = palette.everybody([names[place] for _, place in known])
        return f"{who} keep clients {min(apart)} weighted tokens apart"
    return f"{names[min(known)[1]] if known else 'none'} keeps its clients closest together"


def _names(systems: Sequence[System]) -> list[str]:
    """The policies if they distinguish the systems, else the system names."""
    policies = [str(system.first.engine["policy"]).rpartition(":")[2] for system in systems]
    return policies if len(set(policies)) == len(policies) else [system.name for system in systems]


def _apart(summary: Summary) -> object:
    return summary["service"].get("largest_difference")
