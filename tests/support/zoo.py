"""Recordings of genuine memory managers: `<goldens>/zoo/<engine>/<name>`."""

import gzip
import json
import os
from pathlib import Path

from support.shared_data import BESIDE, goldens


def recording(path):
    """A recording, read; the test is skipped where it is missing."""
    return _read(goldens(f"zoo/{path}"))


def rows_at(path):
    """A recording as parameters of a test are made from it: empty where it is missing."""
    file = Path(os.environ.get("KVSIM_GOLDENS") or BESIDE / "goldens") / "zoo" / path
    return _read(file) if file.exists() else {}


def _read(file):
    data = file.read_bytes()
    return json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)


def first_difference(ours, theirs):
    """The first field of a recorded state that ours does not have alike: (name, ours, theirs)."""
    for name, value in theirs.items():
        if ours.get(name, "missing") != value:
            return name, ours.get(name, "missing"), value
    return None
