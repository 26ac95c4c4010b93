"""Recorded runs for the tests of the report, and a parser of its page."""

import contextlib
import io
import json
import re

import numpy as np
import pyarrow.parquet as pq

from kvsim import cli
from kvsim.reports.html.packing import unpacked

DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
PACK = re.compile(r'<script type="application/octet-stream" id="pack-([\w-]+)">(.*?)</script>', re.DOTALL)


def record(out, *choices, command="run"):
    """Run `sim run` or `compare`, with the map, into a directory."""
    line = [command, "--record-map", "40", "--no-plots", "--quiet", "--out", str(out), *map(str, choices)]
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        assert cli.main(line) == 0, errors.getvalue()
    return out


def opened(page):
    """The data of a page, and its packs as columns, by name."""
    data = json.loads(DATA.search(page)[1])
    texts = dict(PACK.findall(page))
    columns = {}
    for place, run in enumerate(data["runs"]):
        for name in ("map", "requests", "events", "spans"):
            if name in run:
                columns[f"{name}-{place}"] = unpacked(texts[f"{name}-{place}"], run[name])
    return data, columns


def slots_of_page(about, columns, instant):
    """(owners, whether filled, whether cached) of every slot, as the page's script replays its columns."""
    unit, state = about["unit"], np.zeros(about["slots"] // about["unit"], np.int64)
    ends = np.cumsum(columns["rows"], dtype=np.int64)
    starts, end = [], 0
    for gap, size in zip(columns["gap"].tolist(), columns["size"].tolist(), strict=True):
        starts.append((end + gap) % 2**32)
        end = starts[-1] + size
    for row in range(ends[instant]):
        state[starts[row] : starts[row] + int(columns["size"][row])] = row
    sets = np.concatenate([[0], np.cumsum(columns["setSize"], dtype=np.int64)])
    found = []
    for slot in range(about["slots"]):
        row = int(state[slot // unit])
        owner = int(columns["owner"][row])
        members = range(sets[owner], sets[owner + 1])
        owners = [(int(columns["member"][i]), int(columns["sample"][i])) for i in members]
        edge = (starts[row] + int(columns["size"][row])) * unit - int(columns["empty"][row])
        found.append((owners, bool(owners) and slot < edge, bool(columns["cached"][row])))
    return found


def slots_of_file(path, instant):
    """The same from map.parquet: every range replaces those that it overlaps."""
    rows = pq.read_table(path).to_pylist()
    times = sorted({row["time_s"] for row in rows})
    alive = {}
    for time in times[: instant + 1]:
        new = [row for row in rows if row["time_s"] == time]
        for row in new:
            first, end = row["start"], row["start"] + row["size"]
            alive = {s: old for s, old in alive.items() if s >= end or s + old["size"] <= first}
        alive.update({row["start"]: row for row in new})
    found = []
    for start in sorted(alive):
        row = alive[start]
        parts = [word.partition(".") for word in row["owners"].split()]
        owners = [(int(request), int(sample or 0)) for request, _, sample in parts]
        for slot in range(row["size"]):
            found.append((owners, bool(owners) and slot < row["filled"], bool(row["cached"])))
    return found, times
