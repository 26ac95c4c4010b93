"""Recordings of genuine memory managers: `goldens/zoo` beside the checkout, or in $KVSIM_GOLDENS."""

import gzip
import json

import pytest

from support.shared_data import goldens


def sequences(path: str) -> dict:
    """What a file holds, by name; nothing where there are no recordings (CI fails then)."""
    try:
        file = goldens(f"zoo/{path}.json.gz")
    except pytest.skip.Exception:
        return {}
    return json.loads(gzip.decompress(file.read_bytes()))
