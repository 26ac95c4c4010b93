"""Shared by the loaders of public formats: select usable rows, and note the unusable ones.

    ContextTokens   GeneratedTokens
              374                44     a request
              396                 0     left out: output of 0 tokens
                                 12     left out: prompt length missing

Real traces contain failed calls and gaps. A row is left out for the first reason that applies; a note gives
the count for each reason. A value that is not a number is an error, which the reader reports.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.sim.content import Texts
from kvsim.sim.errors import KvsimError
from kvsim.workloads.lengths import Lengths

FloatColumn = npt.NDArray[np.float64]

MOST_TOKENS = 1_000_000_000
MOST_TIME = 1e15
"""Limit of times in seconds or milliseconds: later than any date, and precise to a second."""


def requests(
    path: str,
    source: str,
    prompt_tokens: FloatColumn,
    output_tokens: FloatColumn,
    arrival_s: FloatColumn | None = None,
    *,
    texts: Texts | None = None,
    labels: Mapping[str, npt.NDArray[np.generic]] | None = None,
    priority: FloatColumn | None = None,
    no_output: str = "output of 0 tokens",
    left_out: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
) -> Lengths:
    """The usable rows, in order of arrival.

    Parameters
    ----------
    source : str
        The format, for the notes.
    prompt_tokens, output_tokens, arrival_s : float64 arrays, shape (n,)
        Values from the file: integers and seconds, NaN if missing.
    texts : Texts or None
    labels : mapping of str to arrays of shape (n,), or None
        As in Lengths, for all rows.
    priority : float64 array, shape (n,), or None
        Integers; NaN if missing, which becomes 0.
    no_output : str
        Why a row without output is left out.
    left_out : mapping of str to int, or None
        Counts of rows left out earlier, by reason.
    notes : sequence of str
        More notes on the file.

    Raises
    ------
    KvsimError
        No usable row.
    """
    order, left = _usable(unusable(prompt_tokens, output_tokens, arrival_s, no_output), left_out or {})
    if not len(order):
        why = "; ".join(left) or "no rows"
        raise KvsimError(f"trace {path} must have at least one request that can be used, got none ({why})")
    when = "which has no arrivals"
    if arrival_s is not None:
        when = "at its own arrivals"
        if (np.diff(arrival_s[order]) < 0).any():
            order = order[np.argsort(arrival_s[order], kind="stable")]
            when += ", by which its rows were sorted"
    what = f"{len(order):,} request{'s' * (len(order) > 1)} of trace {Path(path).name} ({source})"
    return Lengths(
        name=Path(path).stem,
        prompt_tokens=prompt_tokens[order].astype(np.int64),
        output_tokens=output_tokens[order].astype(np.int64),
        notes=(f"{what}, {when}.", *(f"{note}." for note in left), *notes),
        arrival_s=None if arrival_s is None else arrival_s[order],
        texts=texts and texts.rows(order),
        priority=None if priority is None else np.nan_to_num(priority[order]).astype(np.int64),
        labels={name: column[order] for name, column in (labels or {}).items()},
    )


def _usable(
    unusable: Sequence[tuple[str, npt.NDArray[np.bool_]]], left_out: Mapping[str, int]
) -> tuple[npt.NDArray[np.intp], list[str]]:
    """The indices of usable rows, and notes on the others; a row counts for its first reason only."""
    kept = np.ones_like(unusable[0][1])
    reasons = dict(left_out)
    for reason, rows in unusable:
        reasons[reason] = reasons.get(reason, 0) + int(np.count_nonzero(rows & kept))
        kept &= ~rows
    left = [
        f"{count:,} row{'s' * (count > 1)} left out: {reason}" for reason, count in reasons.items() if count
    ]
    return np.flatnonzero(kept), left


def unusable(
    prompt: FloatColumn, output: FloatColumn, arrival_s: FloatColumn | None, no_output: str
) -> list[tuple[str, npt.NDArray[np.bool_]]]:
    """Each reason for leaving out rows, with the rows."""
    found = [
        ("prompt length missing", np.isnan(prompt)),
        ("negative prompt length", prompt < 0),
        ("prompt of 0 tokens", prompt == 0),
        ("output length missing", np.isnan(output)),
        ("negative output length", output < 0),
        (no_output, output == 0),
    ]
    if arrival_s is not None:
        found += [("arrival missing", np.isnan(arrival_s)), ("arrival before 0", arrival_s < 0)]
    return found


def from_first(arrival_s: FloatColumn) -> FloatColumn:
    """Seconds from the earliest row."""
    first = np.fmin.reduce(arrival_s, initial=np.inf)
    return arrival_s - first if np.isfinite(first) else arrival_s


def possible(value: float, whole: bool) -> bool:
    """Whether a trace may contain this number; NaN counts as missing."""
    if math.isnan(value):
        return True
    return abs(value) <= MOST_TOKENS and value.is_integer() if whole else abs(value) <= MOST_TIME


def all_possible(values: FloatColumn, whole: bool) -> bool:
    """Whether a trace may contain all these numbers."""
    given = values[~np.isnan(values)]
    fit = np.abs(given) <= (MOST_TOKENS if whole else MOST_TIME)
    return bool((fit & (np.floor(given) == given) if whole else fit).all())


def allowed(whole: bool) -> str:
    """The allowed values, in words."""
    return f"a whole number of at most {MOST_TOKENS:,}" if whole else f"a number of at most {MOST_TIME:g}"
