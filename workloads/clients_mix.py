"""Clients by shares: who asks each request, and what is due to whom.

    A:0.8:ttft=1,B:0.2:deadline=30     four of five are A's, first tokens due in a second; the rest are B's
    A:0.5,B:0.5:burst=20               B's come twenty in a row

Each client may say `ttft`, `tpot` and `deadline` in seconds, `priority`, and `burst`: so many requests in a
row are its own. Shares are of requests, and need not add up to 1. They replace what the trace says. In
sweeps, where a comma parts values, `+` stands between clients.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.sim.errors import KvsimError
from kvsim.workloads.lengths import Lengths

FORM = "as in A:0.8:ttft=1,B:0.2:deadline=30"
GOALS = {"ttft": "slo_ttft_s", "tpot": "slo_tpot_s", "deadline": "deadline_s"}
MOST_BURST = 1_000_000


class Client(NamedTuple):
    """One of a mix."""

    name: str
    share: float
    goals: dict[str, float]
    priority: int
    burst: int


def with_clients(lengths: Lengths, text: str, rng: np.random.Generator) -> Lengths:
    """The requests, each of one of the clients.

    Parameters
    ----------
    text : str
        The mix.
    rng : numpy Generator
        Draws whose each is.

    Raises
    ------
    KvsimError
        A text of another form, or a number out of its range.
    """
    clients = [_client(part, text) for part in text.replace("+", ",").split(",")]
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


def _owners(clients: list[Client], count: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The place of each request's client: runs of `burst`, as often as shares say."""
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
    priority, burst = told.pop("priority", 0.0), told.pop("burst", 1.0)
    fine = name and 0 < share < 1e9 and told.keys() <= GOALS.keys() and priority == int(priority)
    fine = fine and 1 <= burst <= MOST_BURST and burst == int(burst)
    if not (fine and all(0 < goal <= 1e6 for goal in told.values())):
        raise KvsimError(f"clients_mix must be {FORM}, or with tpot, priority, burst, got {part!r}")
    return Client(name, share, told, int(priority), int(burst))
