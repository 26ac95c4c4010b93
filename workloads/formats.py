"""Choose the loader of a trace file by how the file begins, never by its name.

    beginning                        container    names
    PAR1                             parquet      its columns
    { or [{                          JSON         the keys of the first object
    a line of names with commas      CSV          the header

The first table entry with the file's container, and with names that all occur in the file, wins. Other files,
and all files whose columns the user names, are in kvsim's own format. To add a format, add one file, and one
line here. Loaders count unusable rows by reason, in the notes.
"""

import csv
import os
import re
import zlib
from collections.abc import Callable
from importlib import import_module
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import NamedTuple

from kvsim.sim.bench.names import BEGINNINGS, begins_a_result, in_folder
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import GZIP_MAGIC
from kvsim.sim.files.tables import opened_table
from kvsim.workloads.csv_rows import delimiter_of
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.lines import check_trace
from kvsim.workloads.native import load_native
from kvsim.workloads.rows import BYTE_ORDER_MARK, PARQUET_MAGIC


class Format(NamedTuple):
    """How files of a format begin, and the `module:function` that reads them."""

    container: str
    names: tuple[str, ...]
    loader: str


A_RESULT = "a result"
"""Stands for the keys at the start of a benchmark tool's result (sim/bench/names.py)."""

FORMATS: dict[str, Format] = {
    "Azure": Format("CSV", ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), "azure:load_azure"),
    "BurstGPT": Format("CSV", ("Timestamp", "Request tokens", "Response tokens"), "burstgpt:load_burstgpt"),
    "Vidur": Format("CSV", ("num_prefill_tokens", "num_decode_tokens"), "vidur:load_vidur"),
    "Splitwise": Format(
        "CSV", ("arrival_timestamp", "prompt_size", "token_size"), "splitwise:load_splitwise"
    ),
    "Bailian": Format(
        "JSON", ("chat_id", "timestamp", "input_length", "output_length"), "bailian:load_bailian"
    ),
    "Mooncake": Format("JSON", ("timestamp", "input_length", "output_length"), "mooncake:load_mooncake"),
    "Weka": Format("JSON", ("requests", "block_size"), "weka:load_weka"),
    "OpenTelemetry": Format("JSON", ("resourceSpans",), "otel:load_otel"),
    "OpenTelemetry spans": Format("JSON", ("attributes", "start_time"), "otel:load_otel"),
    "ShareGPT": Format("JSON", ("conversations",), "sharegpt_json:load_sharegpt"),
    "benchmark result": Format("JSON", (A_RESULT,), "measured:load_result"),
    "hash ids": Format("parquet", ("hash_ids",), "compact:load_compact"),
    "conversations": Format("parquet", ("conversation_id",), "compact:load_compact"),
    "kvsim": Format("JSON", (), "native:load_native"),
    "kvsim in parquet": Format("parquet", (), "native:load_native"),
    "kvsim in CSV": Format("CSV", (), "native:load_native"),
}
"""Name of a format -> how it is recognised, and its loader; the first match wins."""

_NAMES = {name for form in FORMATS.values() if form.container == "JSON" for name in form.names}
_NAMES |= {name for names in BEGINNINGS for name in names}

TEXT_FORMATS = ("ShareGPT",)
"""Formats that hold texts, whose tokens must be counted."""

LONGEST_HEAD = 1 << 20


def load_file(
    path: str,
    *,
    count: Callable[[str], int] | None = None,
    turns: str = "first",
    columns: str | None = None,
) -> Lengths:
    """The requests of a file in any of these formats, in order of arrival.

    Parameters
    ----------
    count : function of a text, or None
        Counts the tokens of a text, for formats that hold texts.
    turns : str
        Which turns of a conversation to use in such a format, see `load_sharegpt`.
    columns : str or None
        Names of kvsim's fields in the file, as in `prompt_tokens=isl`; it is then in kvsim's own format.

    Raises
    ------
    KvsimError
        A file that cannot be read, or has an invalid value.
    """
    check_trace(path)
    if columns is not None:
        return load_native(path, columns)
    if os.path.isdir(path):
        return load_directory(path)
    name = recognised(path)
    module, function = FORMATS[name].loader.split(":")
    loader: Callable[..., Lengths] = getattr(import_module(f"kvsim.workloads.{module}"), function)
    return loader(path, count, turns) if name in TEXT_FORMATS else loader(path)


def load_directory(path: str) -> Lengths:
    """The requests in a directory: ServeGen's clients, sessions of agents, or a benchmark's result.

    Raises
    ------
    KvsimError
        A directory of another kind.
    """
    names = sorted(os.listdir(path))
    if in_folder(Path(path)) is not None:
        from kvsim.workloads.measured import load_result

        return load_result(path)
    for name in names:
        if name.endswith(("-trace.csv", ".json")):
            check_trace(os.path.join(path, name))
    if any(name.endswith("-trace.csv") for name in names):
        from kvsim.workloads.servegen import load_servegen

        return load_servegen(path)
    if any(name.endswith(".json") for name in names):
        from kvsim.workloads.weka import load_weka

        return load_weka(path)
    what = "ServeGen's clients (*-trace.csv), sessions of agents (*.json) or a benchmark's result"
    raise KvsimError(f"trace {path} is a directory, which must hold {what}, got none of them")


def recognised(path: str) -> str:
    """The name of a file's format; files other than JSON, CSV or parquet count as `kvsim`.

    Raises
    ------
    KvsimError
        A file that cannot be read.
    """
    check_trace(path)
    try:
        with open(path, "rb") as file:
            head = file.read(LONGEST_HEAD)
    except OSError as error:
        raise KvsimError(f"trace {path} cannot be read: {error.strerror or error}") from error
    if head.startswith(GZIP_MAGIC):
        container, names = _beginning(path, _unpacked(head))
        if A_RESULT not in names:
            raise KvsimError(f"trace {path} is packed by gzip: unpack it first, as in gunzip")
    else:
        container, names = _beginning(path, head)
    return next(
        name for name, form in FORMATS.items() if form.container == container and names.issuperset(form.names)
    )


def _unpacked(head: bytes) -> bytes:
    """The beginning of gzip-compressed data; empty if it is damaged."""
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(head, LONGEST_HEAD)
    except zlib.error:
        return b""


def _beginning(path: str, head: bytes) -> tuple[str, set[str]]:
    """The container, and the names in the first row."""
    if head.startswith(PARQUET_MAGIC):
        return "parquet", _parquet_columns(path)
    text = head.removeprefix(BYTE_ORDER_MARK).decode(errors="replace").lstrip()
    if re.match(r"\{|\[\s*(\{|$)", text):
        return "JSON", _keys(text)
    if delimiter_of(text):
        return "CSV", set(header_names(text.partition("\n")[0]))
    return "JSON", set()


def header_names(line: str) -> list[str]:
    """The names in the first line of a CSV file with commas; empty if it is not a row of names."""
    try:
        return [name.strip() for name in next(csv.reader([line]), [])]
    except csv.Error:
        return []


def _keys(text: str) -> set[str]:
    """The keys of the first object, or of the part of it that was read.

    An array of objects is inference-perf's or ShareGPT's, whatever its keys.
    """
    if text.startswith("["):
        first = text[: text.find("}") + 1]
        theirs = '"info"' in text and all(f'"{name}"' in first for name in ("start_time", "end_time"))
        return {A_RESULT} if theirs else {"conversations"}
    try:
        found, _ = JSONDecoder().raw_decode(text)
    except (JSONDecodeError, ValueError, RecursionError):
        found = re.findall(rf'"({"|".join(sorted(_NAMES))})"\s*:', text)
        if len(text) * 2 <= LONGEST_HEAD:
            return set()
    keys = set(found)
    return keys | {A_RESULT} if begins_a_result(keys) else keys


def _parquet_columns(path: str) -> set[str]:
    """The names of the columns; empty if the file is damaged, which its loader reports better."""
    try:
        with opened_table(path, path) as file:
            return set(file.schema_arrow.names)
    except KvsimError:
        return set()
