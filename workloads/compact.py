"""Parquet tables with hash ids, or with a row per conversation turn: compact versions of public traces.

    arrival_s    prompt_tokens    output_tokens    hash_ids                        blocks of 512 tokens
    arrival_s    prompt_tokens    output_tokens    conversation_id, turn           new tokens of each turn

The ids are as in Mooncake's traces; `block_size_tokens` in the file's metadata may set another block size. In
the second form `prompt_tokens` is what a turn adds; its prompt is the whole conversation so far. If all
arrivals are null, the trace has none; `client` is kept. Tables with neither column are in kvsim's own format.
"""

from typing import TYPE_CHECKING

import numpy as np

from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.files.tables import opened_table
from kvsim.sim.workload import Int64Column
from kvsim.workloads.conversations import whole_prompts
from kvsim.workloads.hashed import BlockTexts
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.mooncake import BLOCK_TOKENS, rounded
from kvsim.workloads.usable import FloatColumn, all_possible, allowed, possible, requests
from kvsim.workloads.values import shown

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

FIELDS = ("arrival_s", "prompt_tokens", "output_tokens", "hash_ids", "conversation_id", "turn", "client")
MOST_BLOCK_TOKENS = 1 << 20


def load_compact(path: str) -> Lengths:
    """The requests of a file, in order of arrival if they have arrivals.

    Raises
    ------
    KvsimError
        A file that cannot be read, an unknown or missing column, or a value out of range.
    """
    with opened_table(path, f"trace {path}") as file:
        names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]
        for name in names:
            if name not in FIELDS:
                raise KvsimError(f"trace {path}: {unknown('field', name, list(FIELDS))}")
        if {"hash_ids", "conversation_id"} <= set(names):
            raise KvsimError(f"trace {path}: hash_ids must be left out beside conversation_id, got both")
        table = file.read([name for name in names if name != "hash_ids"], use_threads=False)
        prompt, output = (_numbers(path, table, name, True) for name in ("prompt_tokens", "output_tokens"))
        arrival_s = _numbers(path, table, "arrival_s", False) if "arrival_s" in names else np.zeros(0)
        arrivals = None if np.isnan(arrival_s).all() else arrival_s
        turn = _numbers(path, table, "turn", True) if "turn" in names else None
        labels = {} if turn is None or np.isnan(turn).any() else {"turn": turn.astype(np.int64)}
        if "client" in names:
            labels["client"] = _names(path, table, "client")[1]
        notes: list[str] = []
        if "hash_ids" in names:
            blocks = _blocks(path, file, prompt)
            texts = blocks.texts()
            notes = blocks.notes() + ([] if arrivals is None else rounded(arrivals))
        else:
            conversation, labels["session"] = _names(path, table, "conversation_id")
            prompt, texts = whole_prompts(conversation, prompt, output, turn)
    source = "hash ids" if "hash_ids" in names else "conversations"
    return requests(path, source, prompt, output, arrivals, texts=texts, labels=labels, notes=notes)


def _numbers(path: str, table: "pa.Table", name: str, whole: bool) -> FloatColumn:
    """A column of numbers, NaN if missing."""
    from pyarrow import types as kind

    if name not in table.column_names:
        raise KvsimError(f"trace {path}: column {name} must be there")
    column = table[name]
    if not (kind.is_integer(column.type) or kind.is_floating(column.type) or kind.is_null(column.type)):
        raise KvsimError(f"trace {path}: column {name} must be numbers, got {column.type}")
    values: FloatColumn = column.to_numpy().astype(np.float64)
    if not all_possible(values, whole):
        row = next(row for row, value in enumerate(values.tolist()) if not possible(value, whole))
        raise KvsimError(f"trace {path}, row {row}: {name} must be {allowed(whole)}, got {values[row]:g}")
    return values


def _names(path: str, table: "pa.Table", name: str) -> tuple[Int64Column, np.ndarray]:
    """Integer codes for the names, and the names; each row without a name is distinct."""
    from pyarrow import types as kind

    column = table[name]
    if not (kind.is_string(column.type) or kind.is_large_string(column.type) or kind.is_integer(column.type)):
        raise KvsimError(f"trace {path}: column {name} must be texts or whole numbers, got {column.type}")
    encoded = column.combine_chunks().dictionary_encode()
    if hasattr(encoded, "chunks"):  # older releases return chunks
        encoded = encoded.combine_chunks()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    names = np.array([*encoded.dictionary.to_pylist(), None], dtype=object)
    own = codes < 0
    numbers = np.where(own, len(names) + np.cumsum(own), codes)
    return numbers, names[codes]


def _blocks(path: str, file: "pa.parquet.ParquetFile", prompt: FloatColumn) -> BlockTexts:
    from pyarrow import types as kind

    metadata = file.schema_arrow.metadata or {}
    stated = metadata.get(b"block_size_tokens", str(BLOCK_TOKENS).encode()).decode(errors="replace")
    if not (stated.isdecimal() and 1 <= int(stated[:9]) <= MOST_BLOCK_TOKENS):
        must = f"a whole number from 1 to {MOST_BLOCK_TOKENS:,}"
        raise KvsimError(
            f"trace {path}: block_size_tokens of its metadata must be {must}, got {shown(stated)}"
        )
    blocks = BlockTexts(int(stated))
    lengths = np.nan_to_num(prompt).clip(0).astype(np.int64)
    row = 0
    for batch in file.iter_batches(1 << 16, columns=["hash_ids"], use_threads=False):
        lists = batch.column(0)
        if not (
            (kind.is_list(lists.type) or kind.is_large_list(lists.type))
            and kind.is_integer(lists.type.value_type)
        ):
            raise KvsimError(
                f"trace {path}: column hash_ids must be lists of whole numbers, got {lists.type}"
            )
        counts = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        ids = lists.flatten()
        values = ids.to_numpy(zero_copy_only=False)
        if ids.null_count or (len(values) and not 0 <= values.min() <= values.max() <= blocks.most_id):
            found = "null" if ids.null_count else f"{values.min()} to {values.max()}"
            must = f"whole numbers from 0 to {blocks.most_id}"
            raise KvsimError(
                f"trace {path}, rows {row} to {row + len(lists) - 1}: hash_ids must be {must}, got {found}"
            )
        blocks.add(lengths[row : row + len(lists)], counts, values.astype(np.int64))
        row += len(lists)
    return blocks
