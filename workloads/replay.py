"""A trace's own arrivals: part of them, spread out if they were rounded, and faster or slower.

    the trace      0        3  3  3           6  6           9          rounded to 3 s
    --start 3      .        0  0  0           3  3           6
    --spread 3     .        0.4  1.1  2.5     3.9  5.2       6.8        order kept
    --rate-scale 2 .        0.2  0.55 1.25    1.95 2.6       3.4

Start, duration and spread are in seconds of the trace, before --rate-scale.
"""

import math
from dataclasses import replace

import numpy as np

from kvsim.sim.errors import KvsimError
from kvsim.workloads.lengths import Lengths


def part_of(lengths: Lengths, start_s: float, duration_s: float | None) -> Lengths:
    """The requests that arrive from start up to, but not at, start + duration; start becomes 0.

    Raises
    ------
    KvsimError
        A trace without arrivals, no request in that time, or an invalid time.
    """
    if not 0 <= start_s < math.inf:
        raise KvsimError(f"start must be at least 0 and finite, in seconds, got {start_s}")
    if duration_s is not None and not 0 < duration_s < math.inf:
        raise KvsimError(f"duration must be above 0 and finite, in seconds, got {duration_s}")
    if not start_s and duration_s is None:
        return lengths
    if lengths.arrival_s is None:
        field, value = ("start", start_s) if start_s else ("duration", duration_s)
        raise KvsimError(
            f"{field} must be left out for trace {lengths.name}, which has no arrivals, got {value}"
        )
    end_s = math.inf if duration_s is None else start_s + duration_s
    first, end = np.searchsorted(lengths.arrival_s, [start_s, end_s]).tolist()
    until = "on" if duration_s is None else f"to {end_s:g} s"
    if first == end:
        there = f"its arrivals are from {lengths.arrival_s[0]:g} to {lengths.arrival_s[-1]:g} s"
        raise KvsimError(f"trace {lengths.name} has no request from {start_s:g} s {until}: {there}")
    note = f"The {end - first:,} of the {len(lengths):,} rows of {lengths.name} from {start_s:g} s {until}."
    found = replace(lengths.rows(np.arange(first, end)), notes=(*lengths.notes, note))
    return replace(found, arrival_s=lengths.arrival_s[first:end] - start_s)


def replayed(lengths: Lengths, spread_s: float, rate_scale: float, rng: np.random.Generator) -> Lengths:
    """The requests with their arrivals spread out, then scaled by a factor.

    Parameters
    ----------
    spread_s : float
        Each arrival is delayed by up to this much, uniformly; requests stay in order.
    rate_scale : float
        Divisor of all times.
    rng : numpy Generator
        Draws one number per request if there is a spread.

    Raises
    ------
    KvsimError
        An invalid spread or scale.
    """
    if not 0 <= spread_s < math.inf:
        raise KvsimError(f"spread must be at least 0 and finite, in seconds, got {spread_s}")
    if not 0 < rate_scale < math.inf:
        raise KvsimError(f"rate_scale must be above 0 and finite, got {rate_scale}")
    arrival_s, notes = lengths.arrival_s, list(lengths.notes)
    if arrival_s is None or (not spread_s and rate_scale == 1):
        return lengths
    if spread_s:
        arrival_s = np.sort(arrival_s + rng.random(len(lengths)) * spread_s)
        notes.append(f"Arrivals spread over the {spread_s:g} s after their time, in their order.")
    if rate_scale != 1:
        with np.errstate(over="ignore"):
            arrival_s = arrival_s / rate_scale
        notes.append(f"Times divided by {rate_scale:g}.")
    return replace(lengths, arrival_s=arrival_s, notes=tuple(notes))
