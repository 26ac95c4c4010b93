"""kvsim's own trace format: a JSON object, a parquet row or a CSV line per request.

    {"arrival_s": 0.5, "output_tokens": 80, "segments": [["system", 512], ["question-1", 80]]}

    when        arrival_s, in all rows or in none; requests arrive in this order
    how long    prompt_tokens; output_tokens (a list: one length per answer), n answers
    what        segments [[id, tokens], ...] or prompt_token_ids; session and turn
    besides     priority, client; slo_ttft_s, slo_tpot_s, deadline_s, predicted_tokens, max_tokens
                drafts [[proposed, accepted], ...] of each step that produced tokens

docs/traces.md explains them. Every value is checked, and errors name the line. A turn of a session arrives at
the time in the file, even if the previous turn has not ended.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.sim.content import TextBuilder, Texts
from kvsim.sim.errors import KvsimError
from kvsim.sim.serving.facts import TIMES
from kvsim.sim.workload import Int64Column, Samples
from kvsim.workloads.lengths import MOST_SAMPLES, Lengths
from kvsim.workloads.own_rows import read_own
from kvsim.workloads.rows import Rows
from kvsim.workloads.usable import MOST_TIME
from kvsim.workloads.values import (
    SMALLEST,
    Name,
    Numbers,
    Parts,
    checked_names,
    lists,
    names,
    numbers,
    parts,
    seconds,
    shown,
)

MOST_TOKENS = 1_000_000_000
MOST_DRAFTS = 64


def load_native(path: str, columns: str | None = None) -> Lengths:
    """The requests of a file, in order of arrival.

    Parameters
    ----------
    columns : str or None
        The file's field names if they are not standard, see workloads/columns.py.

    Raises
    ------
    KvsimError
        A file that cannot be read, or a field that is missing or out of range.
    """
    try:
        return _loaded(path, read_own(path, columns, quick=True))
    except KvsimError:
        return _loaded(path, read_own(path, columns))


def _loaded(path: str, read: Rows) -> Lengths:
    """The requests of a file's rows."""
    rows, arrival_s, notes = _in_order_of_arrival(read)
    what = _what(rows)
    prompt_tokens = _prompt_tokens(rows, what)
    first, longest, samples = _answers(rows)
    priority = numbers(rows, "priority", SMALLEST)
    goals = {name: seconds(rows, name) for name in TIMES}
    counts = {name: numbers(rows, name, 1, MOST_TOKENS) for name in ("predicted_tokens", "max_tokens")}
    labels = {"session": what.session, "turn": what.turn, "client": names(rows, "client")}
    return Lengths(
        name=Path(path).stem,
        prompt_tokens=prompt_tokens,
        output_tokens=longest,
        notes=(*notes, *rows.notes),
        arrival_s=arrival_s,
        samples=samples,
        texts=_texts(prompt_tokens, first, what),
        priority=priority.values if priority else None,
        drafts=_drafts(rows),
        labels={
            **{name: _label(values) for name, values in labels.items() if values is not None},
            **{name: goal for name, goal in goals.items() if goal is not None},
            **{name: _label(count.plain()) for name, count in counts.items() if count is not None},
        },
    )


class _What(NamedTuple):
    """The contents of prompts, as far as the rows specify them."""

    segments: Parts | None
    segment_ids: list[str]
    token_ids: Parts | None
    session: list[Name | None] | None
    turn: list[int | None] | None


def _drafts(rows: Rows) -> npt.NDArray[np.object_] | None:
    form = f"a list of [proposed, accepted], each from 0 to {MOST_DRAFTS}"
    events = lists(rows, "drafts", form)
    if events is None:
        return None
    found = np.empty(len(events), dtype=object)
    for row, pairs in enumerate(events):
        for pair in pairs:
            numbers = pair if isinstance(pair, list) else []
            if len(numbers) != 2 or any(type(n) is not int or not 0 <= n <= MOST_DRAFTS for n in numbers):
                raise rows.error(row, f"drafts must be {form}, got {shown(pair)} in it")
        found[row] = tuple((pair[0], pair[1]) for pair in pairs if isinstance(pair, list))
    return found


# -- when ---------------------------------------------------------------------------------------


def _in_order_of_arrival(rows: Rows) -> tuple[Rows, npt.NDArray[np.float64] | None, tuple[str, ...]]:
    """The rows, their arrivals, and notes on them."""
    what = f"{len(rows):,} request{'s' * (len(rows) > 1)} of trace {Path(rows.path).name}"
    values = rows.columns.get("arrival_s", [])
    if all(value is None for value in values):
        return rows, None, (f"{what}, which has no arrivals.",)
    for row, value in enumerate(values):
        if value is None:
            raise rows.error(row, "arrival_s must be there in all rows or in none, got none")
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise rows.error(row, f"arrival_s must be a number of seconds, got {shown(value)}")
        if not 0 <= value <= MOST_TIME:
            allowed = f"at least 0 and at most {MOST_TIME:.3g} seconds"
            raise rows.error(row, f"arrival_s must be {allowed}, got {shown(value)}")
    arrival_s = np.array(values, dtype=np.float64)
    if (np.diff(arrival_s) >= 0).all():
        return rows, arrival_s, (f"{what}, at its own arrivals.",)
    order = np.argsort(arrival_s, kind="stable")
    note = f"{what}, at its own arrivals, by which its rows were sorted."
    return rows.in_order(order.tolist()), arrival_s[order], (note,)


# -- how long -----------------------------------------------------------------------------------


def _prompt_tokens(rows: Rows, what: _What) -> Int64Column:
    """The prompt lengths in the rows, or those implied by the prompts' contents."""
    segments, ids = what.segments, what.token_ids
    none = Numbers(np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=bool))
    named, given = numbers(rows, "prompt_tokens", 1, MOST_TOKENS) or none
    lengths = named.copy()
    counted = [("the sum of its segments", segments.sums)] if segments else []
    counted += [("the number of its prompt_token_ids", ids.counts)] if ids else []
    for total, tokens in counted:
        for row in _first(tokens > MOST_TOKENS):
            raise rows.error(row, f"{total} must be at most {MOST_TOKENS:,}, got {tokens[row]}")
        for row in _first(given & (tokens > 0) & (tokens != named)):
            raise rows.error(row, f"prompt_tokens must be {tokens[row]}, {total}, got {named[row]}")
        lengths[tokens > 0] = tokens[tokens > 0]
    if segments and ids:
        for row in _first((segments.counts > 0) & (ids.counts > 0)):
            raise rows.error(row, "segments must be left out beside prompt_token_ids, got both")
    for row in _first(lengths == 0):
        raise rows.error(row, "prompt_tokens must be there, or segments, or prompt_token_ids, got none")
    return lengths


def _answers(rows: Rows) -> tuple[Int64Column, Int64Column, Samples | None]:
    """Lengths of each request's first and longest answer, and of all answers if a row says how many."""
    values = rows.columns.get("output_tokens", [None] * len(rows))
    several = np.fromiter((isinstance(value, list) for value in values), bool, len(rows))
    for row in _first(np.fromiter((value is None or value == [] for value in values), bool, len(rows))):
        raise rows.error(row, f"output_tokens must be there, got {shown(values[row])}")
    each = [value if isinstance(value, list) else (value,) for value in values]
    found = parts(rows, "output_tokens", each, 1, MOST_TOKENS)
    offsets, tokens, counts = found.offsets, found.values, found.counts
    for row in _first(counts > MOST_SAMPLES):
        raise rows.error(row, f"output_tokens must be at most {MOST_SAMPLES} lengths, got {counts[row]}")
    wanted, stated = numbers(rows, "n", 1, MOST_SAMPLES) or Numbers(counts, several)
    for row in _first(several & stated & (wanted != counts)):
        raise rows.error(row, f"n must be the number of output_tokens, {counts[row]}, got {wanted[row]}")
    first, longest = tokens[offsets[:-1]], np.maximum.reduceat(tokens, offsets[:-1])
    if not (several | stated).any():
        return first, longest, None
    copies = np.where(several, 1, wanted)
    ends = np.concatenate([[0], np.cumsum(counts * copies)])
    return first, longest, Samples(ends, np.repeat(tokens, np.repeat(copies, counts)))


# -- what ---------------------------------------------------------------------------------------


def _what(rows: Rows) -> _What:
    ids = lists(rows, "prompt_token_ids", "a list of whole numbers, with at least one")
    turn = numbers(rows, "turn", 0)
    return _What(
        *_segments(rows),
        None if ids is None else parts(rows, "a token id", ids, 0, MOST_TOKENS),
        names(rows, "session"),
        None if turn is None else turn.plain(),
    )


def _segments(rows: Rows) -> tuple[Parts | None, list[str]]:
    form = "a list of [id, tokens], with at least one"
    segments = lists(rows, "segments", form)
    if segments is None:
        return None, []
    ids: list[object] = []
    tokens: list[list[object]] = []
    for row, pairs in enumerate(segments):
        lengths = []
        for pair in pairs:
            if isinstance(pair, dict) and pair.keys() == {"id", "tokens"}:
                ids.append(pair["id"])
                lengths.append(pair["tokens"])
            elif isinstance(pair, list) and len(pair) == 2:
                ids.append(pair[0])
                lengths.append(pair[1])
            else:
                raise rows.error(row, f"segments must be {form}, got {shown(pair)} in it")
        tokens.append(lengths)
    found = parts(rows, "tokens of a segment", tokens, 1, MOST_TOKENS)
    checked = checked_names(
        ids, lambda at, text: rows.error(found.row(at), f"id of a segment must be {text}")
    )
    return found, list(map(str, checked))


def _texts(prompt_tokens: Int64Column, answer_tokens: Int64Column, what: _What) -> Texts | None:
    """The texts of all requests; None if nothing is known about any of them."""
    if not (what.segments or what.token_ids or what.session):
        return None
    builder = TextBuilder()
    none = [None] * len(prompt_tokens)
    pairs: list[tuple[str, int]] = []
    if what.segments:
        pairs = list(zip(what.segment_ids, what.segments.values.tolist(), strict=True))
    columns = (
        prompt_tokens.tolist(),
        answer_tokens.tolist(),
        _places(what.segments, len(none)),
        _places(what.token_ids, len(none)),
        what.session or none,
        what.turn or none,
    )
    for prompt, answer, segments, ids, session, turn in zip(*columns, strict=True):
        builder.add(
            prompt,
            answer,
            segments=pairs[segments],
            token_ids=what.token_ids.values[ids] if what.token_ids else (),
            session=None if session is None else str(session),
            turn=turn,
        )
    return builder.texts()


def _places(found: Parts | None, rows: int) -> list[slice]:
    if found is None:
        return [slice(0, 0)] * rows
    offsets = found.offsets.tolist()
    return list(map(slice, offsets, offsets[1:]))


# -- besides ------------------------------------------------------------------------------------


def _label(values: Sequence[Name | None]) -> npt.NDArray[np.generic]:
    """A column for the results: numbers if all are, else strings, with None if missing."""
    given = [value for value in values if value is not None]
    if all(isinstance(value, int) and abs(value) < 2**63 for value in given):
        return np.array(values, dtype=np.int64 if len(given) == len(values) else object)
    return np.array([None if value is None else str(value) for value in values], dtype=object)


def _first(wrong: npt.NDArray[np.bool_]) -> list[int]:
    """The first wrong row: a list of one, or empty."""
    return list(map(int, np.flatnonzero(wrong)[:1]))
