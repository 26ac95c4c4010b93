"""A user's CSV file as columns of strings: a row of names, then a row per request.

    arrival_s,prompt_tokens,output_tokens
    0.5,592,80

The delimiter is the most frequent of comma, semicolon and tab in the first line. The caller chooses columns;
of the rest only the names are kept. Public formats have their own loaders (workloads/delimited.py).
"""

import csv
from array import array
from collections.abc import Callable, Iterator

from kvsim.sim.errors import KvsimError
from kvsim.workloads.lines import lines_of

DELIMITERS = ",;\t"


def delimiter_of(text: str) -> str | None:
    """The delimiter of the names in the first line; None if the line is not a row of names."""
    line = text.partition("\n")[0]
    if not line.strip() or line.lstrip()[0] in "[{":
        return None
    most = max(DELIMITERS, key=line.count)
    return most if line.count(most) else None


def read_cells(
    path: str, wanted: Callable[[str], bool]
) -> tuple[dict[str, list[str]], list[str], "array[int]"]:
    """The cells of the wanted columns, all names, and the line of each row.

    Raises
    ------
    KvsimError
        A file that cannot be read, a duplicate wanted column, or a row of the wrong width.
    """
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        delimiter = delimiter_of(next(lines_of(path, file), "")) or ","
        file.seek(0)
        rows = _lines(path, csv.reader(lines_of(path, file), delimiter=delimiter))
        _, header = next(rows, (1, []))
        names = [name.strip() for name in header]
        places = {name: place for place, name in enumerate(names) if wanted(name)}
        for name in places:
            if names.count(name) > 1:
                raise KvsimError(
                    f"trace {path}, line 1: column {name!r} must be there once, got {names.count(name)}"
                )
        cells: dict[str, list[str]] = {name: [] for name in places}
        columns = [(cells[name].append, place) for name, place in places.items()]
        numbers = array("q")
        for line, row in rows:
            if len(row) != len(names):
                must = f"must have {len(names)} values, as many as line 1 has names"
                raise KvsimError(f"trace {path}, line {line}: {must}, got {len(row)}")
            for append, place in columns:
                append(row[place])
            numbers.append(line)
    return cells, names, numbers


def _lines(path: str, reader: "csv._reader") -> Iterator[tuple[int, list[str]]]:
    """Each non-blank row, with the number of its first line."""
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise KvsimError(f"trace {path}, line {line}: {error}") from error
        if row is None:
            return
        if row and (len(row) > 1 or row[0].strip()):
            yield line, row
