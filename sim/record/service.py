"""Service by client, and whether requests met the goals that they carry.

    service of a client     prompt tokens once they are computed + 2 x tokens of answers, as they come
    largest difference      between two clients while requests of both wait: what fair policies bound
    Jain's index            (sum of services)^2 / (clients x sum of squares): 1 is equal, 1/n is one alone

Only for runs whose requests have a client or a due time (sim/serving/facts.py). The tokens of an answer are
assumed to be evenly spaced; the difference is evaluated at 2,000 instants.
"""

from collections.abc import Mapping
from itertools import combinations

import numpy as np
import numpy.typing as npt

from kvsim.sim.serving.facts import TIMES

Floats = npt.NDArray[np.float64]
Column = npt.NDArray[np.generic]

INSTANTS, MOST_CLIENTS = 2000, 16
"""Only this many clients are compared: those with the most requests."""
PROMPT, ANSWER = 1.0, 2.0
"""Weights of prompt and answer tokens: VTC's prices."""


def service(table: Mapping[str, Column], wasted_tokens: int = 0) -> dict[str, object] | None:
    """The numbers of a run from its table of requests; None if it has neither clients nor goals.

    `wasted_tokens` were computed and discarded by preemption.
    """
    if "client" not in table and not any(name in table for name in TIMES):
        return None
    done = ~np.isnan(_floats(table, "finish_s"))
    met = attained(table)
    found: dict[str, object] = {
        "longest_wait_s": _most(_floats(table, "queueing_s")[done]),
        "attained_share": None if met is None else _mean(met),
        "wasted_tokens": wasted_tokens,
    }
    if "client" not in table:
        return found
    names = names_of(table)
    clients, counts = np.unique(names, return_counts=True)
    whole = PROMPT * _floats(table, "prompt_tokens") + ANSWER * _floats(table, "output_tokens")
    of_each = {str(client): float(whole[done & (names == client)].sum()) for client in clients}
    largest = clients[np.argsort(-counts, kind="stable")][:MOST_CLIENTS]
    found |= {
        "jain_index": jain(np.array(list(of_each.values()))),
        "largest_difference": largest_difference(table, names, [str(client) for client in largest]),
        "clients": {
            str(client): {
                "requests": int(count),
                "service": of_each[str(client)],
                "ttft_s": _mean(_floats(table, "ttft_s")[done & (names == client)]),
                "longest_wait_s": _most(_floats(table, "queueing_s")[done & (names == client)]),
                "attained_share": None if met is None else _mean(met[names == client]),
            }
            for client, count in zip(clients, counts, strict=True)
        },
    }
    return found


def names_of(table: Mapping[str, Column]) -> npt.NDArray[np.str_]:
    """The client of each request."""
    return np.array(["" if client is None else str(client) for client in table["client"].tolist()])


def attained(table: Mapping[str, Column]) -> Floats | None:
    """1 for each request that met all goals it carries, 0 for others, NaN if it carries none."""
    goals = {name: _floats(table, name) for name in TIMES if name in table}
    if not goals:
        return None
    measured = {"slo_ttft_s": "ttft_s", "slo_tpot_s": "tpot_s", "deadline_s": "e2e_s"}
    brought, met = np.zeros(len(table["ttft_s"]), bool), np.ones(len(table["ttft_s"]), bool)
    for name, goal in goals.items():
        brought |= ~np.isnan(goal)
        met &= np.isnan(goal) | (_floats(table, measured[name]) <= goal)
    return np.where(brought, met.astype(np.float64), np.nan)


def jain(services: Floats) -> float | None:
    """Jain's index of fairness."""
    squares = float((services**2).sum())
    return float(services.sum() ** 2) / (len(services) * squares) if squares else None


def largest_difference(table: Mapping[str, Column], names: npt.NDArray[np.str_], clients: list[str]) -> float:
    """The largest difference between two clients' services while requests of both wait."""
    arrival, started = _floats(table, "arrival_s"), _floats(table, "first_scheduled_s")
    last = _floats(table, "finish_s")
    instants = np.linspace(0.0, float(np.nanmax(last, initial=0.0)), INSTANTS)
    served, waits = {}, {}
    for client in clients:
        rows = (names == client) & ~np.isnan(last)
        served[client] = served_by(table, rows, instants)
        waiting = _stepped(arrival[rows], np.ones(rows.sum()), instants)
        waits[client] = waiting > _stepped(started[rows], np.ones(rows.sum()), instants)
    largest = 0.0
    for one, other in combinations(clients, 2):
        both = waits[one] & waits[other]
        apart = served[one] - served[other]
        edges = np.flatnonzero(np.diff(both.astype(np.int8))) + 1
        for part in np.split(np.arange(INSTANTS), edges):
            if both[part[0]]:
                largest = max(largest, float(np.ptp(apart[part])))
    return largest


def served_by(table: Mapping[str, Column], rows: npt.NDArray[np.bool_], instants: Floats) -> Floats:
    """The service that finished requests have received by each instant, in weighted tokens."""
    first, last = _floats(table, "first_token_s")[rows], _floats(table, "finish_s")[rows]
    prompts = PROMPT * _floats(table, "prompt_tokens")[rows]
    answers = ANSWER * _floats(table, "output_tokens")[rows]
    return _stepped(first, prompts, instants) + _ramped(first, last, answers, instants)


def _stepped(times: Floats, amounts: Floats, instants: Floats) -> Floats:
    """Total received by each instant, if each amount comes at once."""
    order = np.argsort(times, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(amounts[order])])
    found: Floats = sums[np.searchsorted(times[order], instants, side="right")]
    return found


def _ramped(starts: Floats, ends: Floats, amounts: Floats, instants: Floats) -> Floats:
    """Total received by each instant, if each amount comes evenly from a start to an end."""
    rates = amounts / np.maximum(ends - starts, 1e-9)
    ends = np.maximum(ends, starts + 1e-9)
    return _integral(starts, rates, instants) - _integral(ends, rates, instants)


def _integral(starts: Floats, rates: Floats, instants: Floats) -> Floats:
    """The integral of rates that begin at `starts`, at each instant."""
    return _stepped(starts, rates, instants) * instants - _stepped(starts, rates * starts, instants)


def _floats(table: Mapping[str, Column], name: str) -> Floats:
    return np.asarray(table[name], dtype=np.float64)


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _most(values: Floats) -> float | None:
    return float(values.max()) if len(values) else None
