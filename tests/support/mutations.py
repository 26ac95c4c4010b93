"""Damage for fuzzers: bytes, JSON, tables and directories, each changed a little by a seeded `Random`.

mutated_bytes    cut off, flipped, doubled, or filled with marks that mean something
mutated_words    some words of a text replaced by odd ones
mutated_json     a value replaced, a key dropped or doubled, a list ten levels or ten thousand deep
mutated_table    a column dropped, doubled, of another type, with nulls, or of another length
mutated_folder   one of its files changed as above, emptied, removed, or replaced by a directory
"""

import json
import re
from copy import deepcopy
from pathlib import Path
from random import Random

import pyarrow as pa
from pyarrow import parquet

MARKS = tuple(b'" , \n \r [ ] { } : - e9 . \\ud83d \xff \0'.split(b" "))

VALUES = (
    *(None, True, False, 0, 1, -1, 3, 1e-300, 0.5, 1e308, 10**18, 2**63, 10**30, 10**400, -(10**400)),
    *("", "x", "0", "nan", "\ud800", "a\0b", "a\nb", "../..", "\x1b[31m", "x" * 5000),
    *([], [[]], [None], {}, {"a": 1}, [1, 2, 3], {"": None}),
)

CELLS = (
    *(None, True, "x", "", "0", b"\xff", 0, -1, 2**62, -(2**62), 0.0, 0.5, 1.0, -1e308, 1e308, 1e15),
    *(float("nan"), float("inf"), [], [1], ["a"], [[1]], {"id": "a", "tokens": 1}),
)


def mutated_bytes(rng: Random, content: bytes) -> bytes:
    """The content with up to three places changed, and perhaps its end cut off."""
    found = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        start = rng.randint(0, len(found))
        end = min(start + rng.randint(0, 12), len(found))
        piece = rng.choice([rng.choice(MARKS), rng.randbytes(rng.randint(0, 4)), bytes(found[start:end] * 2)])
        found[start:end] = piece
    if rng.random() < 0.2:
        del found[rng.randint(0, len(found)) :]
    return bytes(found)


ODD = (
    *(
        "0",
        "1",
        "-1",
        "-7",
        "1e308",
        "1e-300",
        "inf",
        "nan",
        "1e400",
        "9" * 12,
        "00",
        "0x10",
        "1_0",
        "\u0663",
    ),
    *("true", "null", "None", "x", "\u00e9", "\0", "paged", "os:system", "2026-02-30", "../..", "/dev/zero"),
    *("[]", "[1]", "[[1]]", "{}", "{a=1}", "[nan]", "[-1]", '["x"]', '""', '"x"', '"4"', "'a", '"', *"#=,;"),
)


def mutated_words(rng: Random, text: str) -> str:
    """A text of settings, cells or messages with one to three of its words changed, doubled or left out.

    In settings sometimes a whole value.
    """
    settings = re.findall(r"(?m)^\w+ = .*", text)
    if settings and rng.random() < 0.4:
        old = rng.choice(settings)
        name = (old if rng.random() < 0.9 else rng.choice(settings)).partition(" = ")[0]
        return text.replace(old, f"{name} = {rng.choice(ODD)}", 1)
    words = re.split(r"([\w.+-]+)", text)
    for _ in range(rng.choice([1, 1, 2, 3])):
        place = rng.randrange(1, len(words), 2)
        words[place] = rng.choice([*ODD, "", words[place] * 2, "x" * 5000, rng.choice(words)])
    return "".join(words)


def deep(rng: Random) -> str:
    """JSON of many levels."""
    levels = rng.choice([10, 200, 990, 5000, 100_000])
    return "[" * levels + "]" * levels if rng.random() < 0.5 else '{"a":' * levels + "1" + "}" * levels


def mutated_json(rng: Random, text: str) -> bytes:
    """A JSON text with one to three values, keys or bytes changed."""
    if rng.random() < 0.15:
        return mutated_bytes(rng, text.encode())
    value, hole = json.loads(text), "the deep value stands here"
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        holders = [each for each in _holders(value) if each]
        if not holders:
            break
        holder = rng.choice(holders)
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        what = rng.random()
        if what < 0.2:
            del holder[key]
        elif what < 0.3 and isinstance(holder, dict):
            holder[rng.choice(["", "x", "\ud800", "name", key.upper(), key + " "])] = holder.pop(key)
        elif what < 0.4:
            holder[key] = hole
        elif what < 0.5 and isinstance(holder[key], int | float) and abs(holder[key]) < 1e300:
            holder[key] = rng.choice([-holder[key], holder[key] * 10**9, holder[key] + 0.5, str(holder[key])])
        else:
            holder[key] = deepcopy(rng.choice(VALUES))  # later iterations may change it
    if rng.random() < 0.03:
        value = rng.choice(VALUES)
    raw = json.dumps(value).replace(json.dumps(hole), deep(rng))
    return raw.encode(rng.choice(["utf-8"] * 12 + ["utf-8-sig", "utf-16", "utf-32"]))


def _holders(value: object) -> list:
    """All lists and objects in a value, itself included."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = [value] if isinstance(value, list | dict) else []
    return own + [found for each in inside for found in _holders(each)]


def mutated_table(rng: Random, table: pa.Table) -> pa.Table:
    """A table with one or two of its columns changed."""
    for _ in range(rng.choice([1, 1, 2])):
        if not table.num_columns:
            break
        place = rng.randrange(table.num_columns)
        name, column, rows = table.column_names[place], table.column(place), table.num_rows
        what = rng.randrange(8)
        if what == 0:
            table = table.remove_column(place)
        elif what == 1:
            table = table.append_column(name, column)  # a duplicate
        elif what == 2:
            table = table.slice(0, rng.choice([0, 1, rows // 2]))
        elif what == 3:
            names = [*table.column_names]
            names[place] = rng.choice(["", "x", name.upper(), name + "\n", rng.choice(names)])
            table = table.rename_columns(names)
        elif what == 4:
            kept = [value if rng.random() < 0.5 else None for value in column.to_pylist()]
            table = table.set_column(place, name, pa.array(kept, column.type))
        else:
            table = table.set_column(place, name, _column(rng, rows))
    return table


def _column(rng: Random, rows: int) -> pa.Array:
    """A column of another type, or of the same type with invalid values."""
    value = rng.choice(CELLS)
    values = [value] * rows
    if rows and rng.random() < 0.5 and value is not None:
        values[rng.randrange(rows)] = None
    found = pa.array(values)
    kind = rng.random()
    if kind < 0.1 and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31:
        return found.cast(pa.timestamp("ns") if rng.random() < 0.5 else pa.decimal128(30, 2))
    if kind < 0.2 and not isinstance(value, list | dict) and value is not None:
        return found.dictionary_encode()
    return found


def write_table(table: pa.Table, path: Path) -> None:
    """The table as parquet, including duplicate names; types that parquet cannot hold become plain."""
    try:
        parquet.write_table(table, path)
    except pa.ArrowNotImplementedError:
        plain = [pa.array(column.to_pylist()) for column in table.columns]
        parquet.write_table(pa.Table.from_arrays(plain, names=table.column_names), path)


def mutated_file(rng: Random, path: Path) -> None:
    """Change a JSON or parquet file, or any other, in place."""
    if path.suffix == ".parquet" and rng.random() < 0.8:
        write_table(mutated_table(rng, parquet.ParquetFile(path).read(use_threads=False)), path)
    elif path.suffix == ".json":
        path.write_bytes(mutated_json(rng, path.read_text(encoding="utf-8")))
    else:
        path.write_bytes(mutated_bytes(rng, path.read_bytes()))


def mutated_folder(rng: Random, folder: Path) -> None:
    """Change one or two of the files below a directory."""
    for _ in range(rng.choice([1, 1, 2])):
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".png")
        if not paths:
            return
        path, what = rng.choice(paths), rng.random()
        if what < 0.8:
            try:
                mutated_file(rng, path)
            except (
                OSError,
                ValueError,
                RecursionError,
                pa.ArrowException,
            ):  # changed before, so it is neither JSON nor a table
                path.write_bytes(mutated_bytes(rng, path.read_bytes()))
        elif what < 0.85:
            path.write_bytes(b"")
        elif what < 0.95:
            path.unlink()
            if what >= 0.9:
                path.mkdir() if what < 0.93 else path.symlink_to(path.name)
        else:
            path.write_bytes(rng.choice(paths).read_bytes())
