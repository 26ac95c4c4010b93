"""Prompts as ids of hashed blocks: equal ids mean equal tokens, so ids show what prompts share.

    ids of 16 tokens      input_length      text
    7 8 9                 40                (stream 0, 7 x 16 .. 7 x 16 + 40)
    7 8 20                48                (stream 0, 7 x 16 .. + 32), (stream 0, 20 x 16 .. + 16)

Block k is at position k x block in one stream, so ids that increase by one form one run. Since traces number
blocks by first appearance, a prompt is its shared part plus one run, whatever block size is simulated. The
last block may be partial. Answers have no ids and are unique, even if a later prompt repeats them. If there
are fewer ids than blocks, the rest of the prompt is unique; ids beyond the prompt are ignored.
"""

import math
from array import array
from collections.abc import Mapping, Sequence
from json import JSONDecoder
from typing import NamedTuple

import numpy as np

from kvsim.sim.content import Texts
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import Int64Column
from kvsim.workloads.rows import json_objects
from kvsim.workloads.usable import FloatColumn, allowed, possible
from kvsim.workloads.values import LARGEST, shown

ROWS_AT_ONCE = 4096


class BlockTexts:
    """Collects prompts given as ids, some rows at a time."""

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._parts: list[tuple[Int64Column, Int64Column, Int64Column]] = []
        self.short = 0
        """Prompts with fewer ids than blocks, but at least one."""
        self.long = 0
        """Prompts with more ids than blocks."""

    @property
    def most_id(self) -> int:
        """The largest id whose position fits 64 bits."""
        return LARGEST // self._block - 1

    def add(self, prompt_tokens: Int64Column, counts: Int64Column, ids: Int64Column) -> None:
        """Add the next prompts: row i has `counts[i]` of the ids."""
        block = self._block
        blocks = -(-prompt_tokens // block)
        self.short += int(np.count_nonzero((counts < blocks) & (counts > 0)))
        self.long += int(np.count_nonzero((counts > blocks) & (blocks > 0)))
        used = np.minimum(counts, blocks)
        ends = np.concatenate([[0], np.cumsum(used)])
        before = np.concatenate([[0], np.cumsum(counts)])[:-1]
        ids = ids[np.arange(ends[-1]) + np.repeat(before - ends[:-1], used)]
        begins = np.ones(len(ids), dtype=bool)
        begins[1:] = np.diff(ids) != 1
        begins[ends[:-1][used > 0]] = True
        starts = np.flatnonzero(begins)
        lengths = np.diff(starts, append=len(ids)) * block
        offsets = np.searchsorted(starts, ends)
        last = offsets[1:][used > 0] - 1
        lengths[last] -= np.maximum(used * block - prompt_tokens, 0)[used > 0]
        self._parts.append((np.diff(offsets), ids[starts] * block, lengths))

    def texts(self) -> Texts:
        """All texts added."""
        none = np.zeros(0, dtype=np.int64)
        counts, firsts, lengths = (
            np.concatenate([none, *column]) for column in zip(*self._parts or [(none,) * 3], strict=True)
        )
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return Texts(offsets, np.zeros(len(firsts), dtype=np.int64), firsts, lengths)

    def notes(self) -> list[str]:
        """Notes on prompts that their ids do not cover exactly."""
        found = []
        for count, what in (
            (self.short, "fewer hash ids than blocks; the rest of the prompt counts as its own"),
            (self.long, "more hash ids than blocks; those beyond the prompt are ignored"),
        ):
            if count:
                found.append(f"{count:,} row{'s have' if count > 1 else ' has'} {what}.")
        return found


class HashRows(NamedTuple):
    """A file of JSON lines with hash ids, one row per line."""

    numbers: dict[str, FloatColumn]
    blocks: BlockTexts
    names: dict[str, list[str | None]]


def read_hash_rows(
    path: str, numbers: Mapping[str, bool], prompt: str, block_tokens: int, names: Sequence[str] = ()
) -> HashRows:
    """Read the requested fields of each line; others are ignored.

    Parameters
    ----------
    numbers : mapping of str to bool
        Numeric fields, NaN if missing, and whether they must be integers.
    prompt : str
        The numeric field with the prompt length.
    names : sequence of str
        Fields that are strings or integers, read as strings.

    Raises
    ------
    KvsimError
        A file that cannot be read, or a value that is not a number or not a list of ids.
    """
    columns = {name: array("d") for name in numbers}
    called: dict[str, list[str | None]] = {name: [] for name in names}
    counts, ids = array("q"), array("q")
    blocks = BlockTexts(block_tokens)

    def flush() -> None:
        lengths = np.nan_to_num(np.array(columns[prompt][-len(counts) :]))
        blocks.add(lengths.clip(0).astype(np.int64), np.array(counts), np.array(ids))
        del counts[:], ids[:]

    try:
        with open(path, "rb") as file:
            for line, row in json_objects(path, file, JSONDecoder()):
                for name, whole in numbers.items():
                    columns[name].append(_number(path, line, name, row.get(name), whole))
                for name, values in called.items():
                    values.append(_name(path, line, name, row.get(name)))
                counts.append(_extended(path, line, ids, row.get("hash_ids"), blocks.most_id))
                if len(counts) == ROWS_AT_ONCE:
                    flush()
    except OSError as error:
        raise KvsimError(f"trace {path} cannot be read: {error.strerror or error}") from error
    if counts:
        flush()
    return HashRows({name: np.array(values) for name, values in columns.items()}, blocks, called)


def _name(path: str, line: int, name: str, value: object) -> str | None:
    """Read a name from a row; None if missing."""
    if value is None or type(value) in (str, int):
        return None if value is None else str(value)
    raise KvsimError(
        f"trace {path}, line {line}: {name} must be a text or a whole number, got {shown(value)}"
    )


def _number(path: str, line: int, name: str, value: object, whole: bool) -> float:
    """Read a number from a row; NaN if missing."""
    if value is None:
        return math.nan
    try:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError
        found = float(value)
        if not possible(found, whole):
            raise ValueError
    except (ValueError, OverflowError):
        raise KvsimError(
            f"trace {path}, line {line}: {name} must be {allowed(whole)}, got {shown(value)}"
        ) from None
    return found


def _extended(path: str, line: int, ids: "array[int]", more: object, most: int) -> int:
    """Append the ids of a row; returns how many there are."""
    if more is None or more == []:
        return 0
    try:
        if not isinstance(more, list) or not (min(more) >= 0 and max(more) <= most):
            raise TypeError
        ids.extend(more)
    except (TypeError, OverflowError):
        must = f"a list of whole numbers from 0 to {most}"
        raise KvsimError(f"trace {path}, line {line}: hash_ids must be {must}, got {shown(more)}") from None
    return len(more)
