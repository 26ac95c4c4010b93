"""Mooncake's FAST'25 traces: a JSON object per line, with the ids of the prompt's 512-token blocks.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ..., 2353, 2354]}

Timestamps are milliseconds from the start, in some files rounded to about three seconds. Many requests then
seem to arrive at once, and a note says so.

AIPerf and Dynamo write a variant with sessions, in which later turns have a delay instead of a time:

    {"session_id": "a", "timestamp": 0, "input_length": 6955, "output_length": 52, "hash_ids": [...]}
    {"session_id": "a", "delay": 1500, "input_length": 7100, "output_length": 80, "hash_ids": [...]}

`delay` (or `delay_ms`) is the time from the previous answer, in milliseconds: the wait in --closed-sessions.
Without that option, such a turn arrives this long after the previous turn did. `created_time`, in seconds,
replaces a timestamp. `block_size` in the first row sets another block size. Rows may have a client and goals
(`client`, `priority`, `slo_ttft_s`, `slo_tpot_s`, `deadline_s`, `predicted_tokens`), as in kvsim's own
format.
"""

import json

import numpy as np
import numpy.typing as npt

from kvsim.sim.errors import KvsimError
from kvsim.sim.serving.facts import TIMES
from kvsim.workloads.hashed import HashRows, read_hash_rows
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.lines import lines_of
from kvsim.workloads.usable import FloatColumn, requests
from kvsim.workloads.values import LONGEST_S, shown

BLOCK_TOKENS = 512
MOST_BLOCK_TOKENS = 1 << 20
MOST_TOKENS = 1_000_000_000

FEWEST_ROWS = 100
"""With fewer rows it is unclear whether arrivals are rounded."""


def load_mooncake(path: str) -> Lengths:
    """The requests of a file, in order of arrival.

    Raises
    ------
    KvsimError
        A file that cannot be read, or a value that is not a number or not a list of ids.
    """
    numbers = {"timestamp": False, "input_length": True, "output_length": True}
    dialect = {"delay": False, "delay_ms": False, "created_time": False}
    beside = {"priority": True, "predicted_tokens": True, **dict.fromkeys(TIMES, False)}
    rows = read_hash_rows(
        path, numbers | dialect | beside, "input_length", _block_tokens(path), names=("session_id", "client")
    )
    found = rows.numbers
    arrival_s = found["timestamp"] / 1000
    created = np.isnan(arrival_s) & ~np.isnan(found["created_time"])
    arrival_s = np.where(
        created, found["created_time"] - np.nanmin([*found["created_time"], np.inf]), arrival_s
    )
    delay_s = np.where(np.isnan(found["delay"]), found["delay_ms"], found["delay"]) / 1000
    sessions, labels, notes = rows.names["session_id"], _facts(path, rows), list[str]()
    if any(each is not None for each in sessions):
        arrival_s, late = _after_the_turn_before(sessions, arrival_s, np.nan_to_num(delay_s))
        labels |= {"session": np.array(sessions, dtype=object), "delay_s": np.nan_to_num(delay_s)}
        if late:
            notes.append(
                f"{late:,} turns have a delay but no time: they arrive that long after the previous turn; "
                "with --closed-sessions, after its answer."
            )
    return requests(
        path,
        "Mooncake",
        found["input_length"],
        found["output_length"],
        arrival_s,
        texts=rows.blocks.texts(),
        labels=labels,
        priority=None if np.isnan(found["priority"]).all() else found["priority"],
        notes=[*rows.blocks.notes(), *rounded(arrival_s), *notes],
    )


def _facts(path: str, rows: HashRows) -> dict[str, npt.NDArray[np.generic]]:
    labels: dict[str, npt.NDArray[np.generic]] = {}
    if any(client is not None for client in rows.names["client"]):
        labels["client"] = np.array(rows.names["client"], dtype=object)
    for name, most in (*dict.fromkeys(TIMES, LONGEST_S).items(), ("predicted_tokens", MOST_TOKENS)):
        column = rows.numbers[name]
        wrong = column[(column <= 0) | (column > most)]
        if len(wrong):
            raise KvsimError(f"trace {path}: {name} must be above 0 and at most {most:,}, got {wrong[0]:g}")
        if not np.isnan(column).all():
            labels[name] = column
    return labels


def _after_the_turn_before(
    sessions: list[str | None], arrival_s: FloatColumn, delay_s: FloatColumn
) -> tuple[FloatColumn, int]:
    """Arrivals; a turn without a time arrives its delay after the previous turn."""
    last: dict[str, float] = {}
    found, late = arrival_s.copy(), 0
    for row, name in enumerate(sessions):
        if name is None:
            continue
        if np.isnan(found[row]) and name in last:
            found[row] = last[name] + delay_s[row]
            late += 1
        last[name] = float(found[row])
    return found, late


def _block_tokens(path: str) -> int:
    """The block size given in the first row, else Mooncake's."""
    try:
        with open(path, "rb") as file:
            first = json.loads(next(lines_of(path, file), b"{}"))
    except (OSError, ValueError, RecursionError):
        return BLOCK_TOKENS  # the row reader reports the error better
    stated = first.get("block_size", BLOCK_TOKENS) if isinstance(first, dict) else BLOCK_TOKENS
    if type(stated) is not int or not 1 <= stated <= MOST_BLOCK_TOKENS:
        must = f"a whole number from 1 to {MOST_BLOCK_TOKENS:,}"
        raise KvsimError(f"trace {path}, line 1: block_size must be {must}, got {shown(stated)}")
    return stated


def rounded(arrival_s: FloatColumn) -> list[str]:
    """A note if most requests arrive at the same time as another."""
    different = len(np.unique(arrival_s))
    if different * 2 > len(arrival_s) or len(arrival_s) < FEWEST_ROWS:
        return []
    return [
        f"Arrivals are rounded: {len(arrival_s):,} rows have {different:,} different times, so latencies "
        "show bursts that were not there."
    ]
