"""Recordings of genuine memory managers: `<goldens>/zoo/<engine>/<name>`, and their sibling files.

    recording("kvcached/small.json.gz")     small.json.gz and every other file there that is named small...

Sequences of all of these are tried; if two files have one of the same name, the file's name tells them apart.
"""

import gzip
import json
import os
from pathlib import Path

from support.shared_data import BESIDE, goldens


def recording(path):
    """The recordings of a name, read; the test is skipped if there are none."""
    return _read_all(goldens(f"zoo/{path}"))


def rows_at(path):
    """The same for the parameters of a test: empty if there are none."""
    file = Path(os.environ.get("KVSIM_GOLDENS") or BESIDE / "goldens") / "zoo" / path
    return _read_all(file) if file.exists() else {}


def alike(file):
    """A file and its siblings with the same beginning of the name."""
    stem, dot, rest = file.name.partition(".")
    others = sorted(file.parent.glob(f"{stem}*{dot}{rest}"))
    return [file, *(other for other in others if other != file)]


def merged(one, two, name):
    """Two recordings as one; a sequence of `two` whose name is taken gets the file's name appended."""
    found = dict(one)
    for key, value in two.items():
        if key not in one or value == one[key]:
            found[key] = value
        elif isinstance(value, dict) and not {"ops", "config"} & value.keys():
            found[key] = merged(one[key], value, name)
        elif isinstance(value, list) and value and isinstance(value[0], dict | list):
            found[key] = one[key] + value
        else:
            found[f"{key}@{name}"] = value
    return found


def _read_all(file):
    found, *others = ((_read(each), each.name) for each in alike(file))
    result = found[0]
    for more, name in others:
        result = result + more if isinstance(result, list) else merged(result, more, name)
    return result


def _read(file):
    data = file.read_bytes()
    return json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)


def first_difference(ours, theirs):
    """The first field of a recorded state that differs from ours: (name, ours, theirs)."""
    for name, value in theirs.items():
        if ours.get(name, "missing") != value:
            return name, ours.get(name, "missing"), value
    return None
