"""Convert any readable trace to kvsim's own format: JSON lines or parquet, by the file's ending.

    CSV formats          in parts: memory does not grow with the file (27 million rows of Azure)
    kvsim's own          field by field, unchanged
    all others           read whole, since any two prompts may share text

Text that prompts share becomes segments. A native segment is the start of its stream, so a run is cut
wherever any run of its stream begins:

    runs        (s, 0, 1100)   (s, 512, 300)
    segments    s:0 512, s:512 588     |     s:512 300

A session whose prompts hold the whole conversation is written as just `session`. Rows read in parts keep the
order of the source; the native loader sorts them.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.whole_file import check_file, whole_file
from kvsim.sim.workload import LATEST_ARRIVAL_S
from kvsim.workloads import load
from kvsim.workloads.columns import FIELDS
from kvsim.workloads.delimited import csv_parts, has_column
from kvsim.workloads.formats import recognised
from kvsim.workloads.lengths import Lengths, within_clock
from kvsim.workloads.own_rows import read_own
from kvsim.workloads.usable import FloatColumn, unusable

ROWS_AT_ONCE = 1 << 16

Columns = dict[str, list[Any]]
"""A batch of rows: plain values by field, None if a row has none."""


class _Delimited(NamedTuple):
    """The columns of a CSV format, and what a row without output means."""

    arrival: str
    kind: str
    prompt: str
    output: str
    from_first: bool = False
    no_output: str = "output of 0 tokens"


_DELIMITED = {
    "Azure": _Delimited("TIMESTAMP", "time", "ContextTokens", "GeneratedTokens"),
    "BurstGPT": _Delimited(
        "Timestamp",
        "seconds",
        "Request tokens",
        "Response tokens",
        True,
        "failed call, output of 0 tokens",
    ),
    "Vidur": _Delimited("arrived_at", "seconds", "num_prefill_tokens", "num_decode_tokens"),
    "Splitwise": _Delimited("arrival_timestamp", "seconds", "prompt_size", "token_size"),
}


class Written(NamedTuple):
    """The result of a conversion."""

    rows: int
    notes: tuple[str, ...]


def convert(
    trace: str,
    out: str,
    *,
    force: bool = False,
    columns: str | None = None,
    lengths: Callable[[], Lengths] | None = None,
    done: Callable[[int, int], None] = lambda rows, total: None,
) -> Written:
    """Write a trace to a file in kvsim's own format.

    Parameters
    ----------
    trace : str
        A name or a file, as for `load`.
    out : str
        Ends with .jsonl or .parquet; it is written atomically.
    force : bool
        Replace an existing file.
    columns : str or None
        Field names in a user's file, see `load`.
    lengths : function, or None
        Reads the trace if its name is not enough, for example with a tokenizer.
    done : function
        Called repeatedly with the rows written and their total, 0 if unknown.

    Raises
    ------
    KvsimError
        An unusable trace, another ending, or an existing file.
    """
    if Path(out).suffix not in (".jsonl", ".parquet"):
        raise KvsimError(f"the file to write must end with .jsonl or .parquet, got {out}")
    if os.path.exists(out) and os.path.exists(trace) and os.path.samefile(out, trace):
        raise KvsimError(f"the file to write must be another than the trace, got {out} for both")
    check_file(Path(out), force=force)
    notes: list[str] = []
    whole = lengths or (lambda: load(trace, columns=columns))
    total, batches = _batches(trace, whole, notes, columns)
    write = _write_parquet if out.endswith(".parquet") else _write_json_lines
    with whole_file(Path(out), force=force) as part:
        rows = write(part, batches, lambda rows: done(rows, total))
        if not rows:
            why = "; ".join(note.removesuffix(".") for note in notes) or "no rows"
            raise KvsimError(
                f"trace {trace} must have at least one request that can be used, got none ({why})"
            )
    return Written(rows, tuple(notes))


# -- reading ------------------------------------------------------------------------------------


def _batches(
    trace: str, whole: Callable[[], Lengths], notes: list[str], columns: str | None
) -> tuple[int, Iterator[Columns]]:
    """The maximum number of rows, 0 if unknown, and the rows; `notes` are complete after the last one."""
    form = recognised(trace) if os.path.isfile(trace) else ""
    if form.startswith("kvsim") or (form and columns is not None):
        return 0, _as_they_are(trace, columns, notes)
    if form in _DELIMITED:
        known = _DELIMITED[form]
        kinds = {known.prompt: "tokens", known.output: "tokens"}
        if form != "Vidur" or has_column(trace, known.arrival):
            kinds[known.arrival] = known.kind
        found = csv_parts(trace, kinds)
        if found is not None:
            first = found.least[known.arrival] if known.from_first else 0.0
            return found.rows, _usable(found.parts, known, first if np.isfinite(first) else 0.0, notes)
    lengths = whole()
    return len(lengths), _of_lengths(lengths, notes)


def _usable(
    parts: Iterator[dict[str, FloatColumn]], columns: _Delimited, first: float, notes: list[str]
) -> Iterator[Columns]:
    """The rows that a loader would use; the others are counted."""
    left_out: Counter[str] = Counter()
    for part in parts:
        prompt, output = part[columns.prompt], part[columns.output]
        arrival = part[columns.arrival] - first if columns.arrival in part else None
        kept = np.ones(len(prompt), dtype=bool)
        late = np.zeros(0, dtype=bool) if arrival is None else arrival > LATEST_ARRIVAL_S
        reasons = unusable(prompt, output, arrival, columns.no_output)
        for reason, rows in [*reasons, *([("arrival after the clock's end", late)] if len(late) else [])]:
            left_out[reason] += int(np.count_nonzero(rows & kept))
            kept &= ~rows
        found: Columns = {} if arrival is None else {"arrival_s": arrival[kept].tolist()}
        found["prompt_tokens"] = prompt[kept].astype(np.int64).tolist()
        found["output_tokens"] = output[kept].astype(np.int64).tolist()
        yield found
    notes += [
        f"{count:,} row{'s' * (count > 1)} left out: {why}." for why, count in left_out.items() if count
    ]


def _as_they_are(trace: str, columns: str | None, notes: list[str]) -> Iterator[Columns]:
    """The fields of a native file, once its loader has checked them."""
    load(trace, columns=columns)
    rows = read_own(trace, columns)
    notes += rows.notes
    yield dict(rows.columns)


def _of_lengths(lengths: Lengths, notes: list[str]) -> Iterator[Columns]:
    if lengths.endless:
        raise KvsimError(f"trace {lengths.name} is drawn, not a table: it has no rows to write")
    lengths = within_clock(lengths)
    notes += lengths.notes
    texts = lengths.texts and _Segments(lengths, notes)
    labels = {name: _one_kind(column) for name, column in lengths.labels.items() if name in FIELDS}
    for start in range(0, len(lengths), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        found: Columns = {}
        if lengths.arrival_s is not None:
            found["arrival_s"] = lengths.arrival_s[rows].tolist()
        found["prompt_tokens"] = lengths.prompt_tokens[rows].tolist()
        found["output_tokens"] = lengths.output_tokens[rows].tolist()
        if lengths.samples is not None:
            found["output_tokens"] = [
                lengths.samples.tokens[low:high].tolist() if low < high else tokens
                for low, high, tokens in zip(
                    lengths.samples.offsets[:-1][rows],
                    lengths.samples.offsets[1:][rows],
                    found["output_tokens"],
                    strict=True,
                )
            ]
        if lengths.priority is not None:
            found["priority"] = lengths.priority[rows].tolist()
        found |= {name: column[rows].tolist() for name, column in labels.items()}
        if texts:
            found["segments"] = [texts.row(row) for row in range(*rows.indices(len(lengths)))]
        yield found


def _one_kind(column: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Names as strings if any of them is a string, as in the native loader."""
    if not any(isinstance(value, str) for value in column.tolist()):
        return column
    return np.array([None if value is None else str(value) for value in column.tolist()], dtype=object)


class _Segments:
    """The contents of prompts, as segments of the native format."""

    def __init__(self, lengths: Lengths, notes: list[str]) -> None:
        texts = lengths.texts
        if texts is None:
            raise ValueError("there are no texts")
        self._texts, self._prompts = texts, lengths.prompt_tokens.tolist()
        self._answers = (lengths.prompt_tokens + lengths.output_tokens).tolist()
        self._sessions = lengths.labels["session"].tolist() if "session" in lengths.labels else []
        self._cuts: dict[int, list[int]] = {}
        order = np.lexsort((self._texts.firsts, self._texts.streams))
        starts = np.stack([self._texts.streams[order], self._texts.firsts[order]], axis=1)
        for stream, first in np.unique(starts, axis=0).tolist():
            self._cuts.setdefault(stream, []).append(first)
        self._alone = self._conversations()
        ends = np.concatenate([[0], np.cumsum(self._texts.lengths)])[self._texts.offsets]
        named = np.diff(ends) > lengths.prompt_tokens
        beyond = int(np.count_nonzero(named)) if not self._alone else 0
        if beyond:
            notes.append(f"{beyond:,} answers that later prompts may repeat are no longer named.")
        if self._sessions and not self._alone and "turn" in lengths.labels:
            turns = zip(self._sessions, lengths.labels["turn"].tolist(), strict=True)
            known = [turn for turn in turns if None not in turn]
            if doubles := len(known) - len(set(known)):
                what = "repeat session and turn of another: behind equal prompts their answers count as equal"
                notes.append(f"{doubles:,} rows {what}.")

    def _conversations(self) -> bool:
        """Whether `session` implies all texts: a stream each, with the whole conversation so far."""
        texts, sessions = self._texts, self._sessions
        if not sessions or None in sessions or len(texts.streams) != len(sessions) or texts.firsts.any():
            return False
        if (np.diff(texts.offsets) != 1).any() or texts.lengths.tolist() != self._answers:
            return False
        pairs = set(zip(map(str, sessions), texts.streams.tolist(), strict=True))
        return len(pairs) == len({name for name, _ in pairs}) == len({stream for _, stream in pairs})

    def row(self, row: int) -> list[list[Any]] | None:
        """The segments of a prompt, which sum to its length; None if it is unique or its session's."""
        if self._alone:
            return None
        low, high = int(self._texts.offsets[row]), int(self._texts.offsets[row + 1])
        left = self._prompts[row]
        found: list[list[Any]] = []
        for place in range(low, high):
            if not left:
                break
            stream, first = int(self._texts.streams[place]), int(self._texts.firsts[place])
            length = min(int(self._texts.lengths[place]), left)
            left -= length
            found += self._cut(stream, first, length)
        if found and left:
            found.append([f"own:{row}", left])
        return found or None

    def _cut(self, stream: int, first: int, length: int) -> list[list[Any]]:
        """Cut a run into pieces wherever some run begins."""
        cuts = self._cuts[stream]
        begin = int(np.searchsorted(cuts, first))
        end = int(np.searchsorted(cuts, first + length))
        edges = [*cuts[begin:end], first + length]
        return [[f"{stream}:{at}", to - at] for at, to in pairwise(edges)]


# -- writing ------------------------------------------------------------------------------------


def _write_json_lines(path: Path, batches: Iterator[Columns], done: Callable[[int], None]) -> int:
    rows = 0
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": "), allow_nan=False).encode
        for batch in batches:
            names = list(batch)
            for values in zip(*batch.values(), strict=True):
                row = {name: value for name, value in zip(names, values, strict=True) if value is not None}
                file.write(encode(row) + "\n")
                rows += 1
            done(rows)
    return rows


def _write_parquet(path: Path, batches: Iterator[Columns], done: Callable[[int], None]) -> int:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    rows, writer = 0, None
    try:
        for batch in batches:
            columns = _with_answers_alike({name: batch[name] for name in FIELDS if name in batch})
            if writer is None:
                schema = pa.schema(
                    [(name, _kind(pa, name, columns[name])) for name in FIELDS if name in columns]
                )
                writer = pq.ParquetWriter(path, schema, compression="zstd")
            arrays = [
                pa.array(_plain(field.name, columns[field.name], field.type, pa), field.type)
                for field in schema
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
            rows += len(arrays[0])
            done(rows)
    finally:
        if writer is not None:
            writer.close()
    return rows


def _with_answers_alike(columns: Columns) -> Columns:
    """Lists of answers in all rows if any row has one, since a column has one type."""
    answers = columns["output_tokens"]
    if not any(isinstance(value, list) for value in answers):
        return columns
    copies = columns.get("n", [None] * len(answers))
    alike = [
        value if isinstance(value, list) else [value] * int(n or 1)
        for value, n in zip(answers, copies, strict=True)
    ]
    return columns | {"output_tokens": alike}


def _kind(pa: Any, name: str, values: list[Any]) -> Any:  # noqa: ANN401 - pyarrow's types
    if name == "arrival_s":
        return pa.float64()
    if name == "segments":
        return pa.list_(pa.struct([("id", pa.string()), ("tokens", pa.int64())]))
    if name == "prompt_token_ids" or any(isinstance(value, list) for value in values):
        return pa.list_(pa.int64())
    return pa.string() if any(isinstance(value, str) for value in values) else pa.int64()


def _plain(name: str, values: list[Any], kind: Any, pa: Any) -> list[Any]:  # noqa: ANN401
    """The values as pyarrow takes them: pairs as dicts, one type per column."""
    if name == "segments":
        return [
            value
            and [
                pair if isinstance(pair, dict) else {"id": str(pair[0]), "tokens": pair[1]} for pair in value
            ]
            for value in values
        ]
    if pa.types.is_string(kind):
        return [None if value is None else str(value) for value in values]
    return values
