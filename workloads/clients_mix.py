"""Clients by shares: the client of each request, and the goals of each client.

    A:0.8:ttft=1,B:0.2:deadline=30     80 % are A's, first tokens due in a second; the rest are B's
    A:0.5,B:0.5:burst=20               B's come twenty in a row
    A:0.5:rate=2,B:0.5                 A's come at random, two per second; B's keep their arrival times

Each client may set `ttft`, `tpot` and `deadline` in seconds, `priority`, `burst` (its requests come so many
in a row) and `rate` (its requests are a separate Poisson process of this many per second). Shares are of
requests, and need not sum to 1. All this replaces what the trace says. In sweeps, where commas separate
values, `+` separates clients.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import PS_PER_S
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.when import Arrivals

FORM = "as in A:0.8:ttft=1,B:0.2:deadline=30"
GOALS = {"ttft": "slo_ttft_s", "tpot": "slo_tpot_s", "deadline": "deadline_s"}
MOST_BURST = 1_000_000


class Client(NamedTuple):
    """One client of a mix."""

    name: str
    share: float
    goals: dict[str, float]
    priority: int
    burst: int
    rate: float


def with_clients(lengths: Lengths, text: str, rng: np.random.Generator) -> Lengths:
    """The requests, each assigned to one of the clients.

    Parameters
    ----------
    text : str
        The mix.
    rng : numpy Generator
        Draws each request's client.

    Raises
    ------
    KvsimError
        A text of another form, or a number out of range.
    """
    clients = _clients(text)
    if len({client.name for client in clients}) < len(clients):
        raise KvsimError(f"clients_mix must name each client once, got {text!r}")
    owners = _owners(clients, len(lengths), rng)
    labels = dict(lengths.labels)
    labels["client"] = np.array([client.name for client in clients], dtype=object)[owners]
    for goal, label in GOALS.items():
        if any(goal in client.goals for client in clients):
            labels[label] = np.array([client.goals.get(goal, np.nan) for client in clients])[owners]
    priority = lengths.priority
    if any(client.priority for client in clients):
        priority = np.array([client.priority for client in clients])[owners]
    note = f"Clients drawn: {text}."
    return replace(lengths, labels=labels, priority=priority, notes=(*lengths.notes, note))


def paced(
    lengths: Lengths, arrivals: Arrivals, text: str | None, rng: np.random.Generator
) -> tuple[Lengths, Arrivals]:
    """Move requests of clients with rates to their own arrival times; returns all in order of arrival."""
    rates = {client.name: client.rate for client in _clients(text) if client.rate} if text else {}
    if not rates:
        return lengths, arrivals
    if arrivals.waits is not None:
        raise KvsimError(f"clients_mix must name no rate if requests wait for answers, got {text!r}")
    owner, times_ps = lengths.labels["client"], arrivals.arrival_ps.copy()
    for name, rate in rates.items():
        own = np.flatnonzero(owner == name)
        times_ps[own] = np.cumsum(rng.exponential(PS_PER_S / rate, len(own))).astype(np.int64)
    order = np.argsort(times_ps, kind="stable")
    return lengths.rows(order), arrivals._replace(arrival_ps=times_ps[order])


def _clients(text: str) -> list[Client]:
    return [_client(part, text) for part in text.replace("+", ",").split(",")]


def _owners(clients: list[Client], count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The index of each request's client: runs of `burst`, in proportion to the shares."""
    bursts = np.array([client.burst for client in clients])
    shares = np.array([client.share for client in clients]) / bursts
    mean = float((bursts * shares).sum() / shares.sum())
    owners = np.zeros(0, dtype=np.int64)
    while len(owners) < count:
        runs = int((count - len(owners)) / mean) + 8
        drawn = rng.choice(len(clients), size=runs, p=shares / shares.sum())
        owners = np.concatenate([owners, np.repeat(drawn, bursts[drawn])])
    return owners[:count]


def _client(part: str, whole: str) -> Client:
    name, *rest = (word.strip() for word in part.split(":"))
    try:
        share = float(rest[0])
        told = {key: float(value) for key, _, value in (word.partition("=") for word in rest[1:])}
    except (IndexError, ValueError):
        raise KvsimError(f"clients_mix must be {FORM}, got {whole!r}") from None
    priority, burst, rate = told.pop("priority", 0.0), told.pop("burst", 1.0), told.pop("rate", None)
    fine = name and 0 < share < 1e9 and told.keys() <= GOALS.keys() and priority == int(priority)
    fine = fine and 1 <= burst <= MOST_BURST and burst == int(burst)
    fine = fine and (rate is None or 1e-6 <= rate <= 1e6)
    if not (fine and all(0 < goal <= 1e6 for goal in told.values())):
        raise KvsimError(f"clients_mix must be {FORM}, or with tpot, priority, burst, rate, got {part!r}")
    return Client(name, share, told, int(priority), int(burst), rate or 0.0)
