"""The content of a directory of results, without the simulation's own time."""

import json
from pathlib import Path


def contents(directory):
    """Every file of a directory -> its bytes; summaries without the time that the simulation took."""
    found = {}
    for path in sorted(Path(directory).rglob("*")):
        if path.name == "summary.json":
            found[str(path.relative_to(directory))] = timeless(json.loads(path.read_text()))
        elif path.is_file():
            found[str(path.relative_to(directory))] = path.read_bytes()
    return found


def timeless(value):
    if isinstance(value, list):
        return [timeless(each) for each in value]
    if isinstance(value, dict):
        return {name: timeless(each) for name, each in value.items() if name != "simulation"}
    return value
