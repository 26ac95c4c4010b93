"""ServeGen's model of a service's clients (Alibaba): two files per client, from which requests are drawn.

    chunk-7-trace.csv       600,1.105,1.023,Gamma,0.955,0.948      from second 600 on: rate, CV, gaps and
                                                                   their parameters; no name: no requests
    chunk-7-dataset.json    {"0": {"input_tokens": "{812: 0.02, ...}", "output_tokens": "{...}"}, ...}

Each client draws its own gaps (Gamma or Weibull: shape, scale in seconds) in each window of its table, and
lengths from the current distribution, prompt and answer independently. A window ends where the next begins.
The seed is fixed, so the directory is a trace like any other, and `--start` and `--duration` take a part of
it. Only text lengths are used, without reasoning and images.
"""

import ast
import csv
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import read_object
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.lines import lines_of
from kvsim.workloads.usable import FloatColumn, requests
from kvsim.workloads.values import shown

SEED = 0
MOST_REQUESTS = 20_000_000
LENGTHS = ("input_tokens", "output_tokens")
Window = tuple[float, str, float, float]
"""Start, distribution of the gaps, and its two parameters."""
Distribution = tuple[FloatColumn, FloatColumn]
"""Lengths, and the cumulative probability of each."""


def load_servegen(path: str) -> Lengths:
    """The requests of all clients in a directory, in order of arrival.

    Raises
    ------
    KvsimError
        A file that cannot be read, or has another form.
    """
    traces = sorted(Path(path).glob("*-trace.csv"), key=lambda file: (len(file.name), file.name))
    columns: dict[str, list[FloatColumn]] = {name: [] for name in ("arrival", *LENGTHS)}
    clients: list[np.ndarray] = []
    total = 0
    for number, file in enumerate(traces):
        beside = file.with_name(file.name.replace("-trace.csv", "-dataset.json"))
        windows, lengths = _windows(file), _lengths(beside)
        rng = np.random.default_rng([SEED, number])
        arrivals = _arrivals(windows, rng)
        starts = [begun for begun, _ in lengths]
        places = np.array([bisect_right(starts, at) - 1 for at in arrivals.tolist()], dtype=np.int64)
        kept = places >= 0
        columns["arrival"].append(arrivals[kept])
        for name in LENGTHS:
            drawn = np.zeros(int(kept.sum()))
            for place in np.unique(places[kept]).tolist():
                values, reached = lengths[place][1][name]
                here = places[kept] == place
                chance = rng.random(int(here.sum()))
                drawn[here] = values[np.searchsorted(reached, chance).clip(max=len(values) - 1)]
            columns[name].append(drawn)
        name = file.name.removesuffix("-trace.csv")
        clients.append(np.full(int(kept.sum()), name, dtype=object))
        total += int(kept.sum())
        if total > MOST_REQUESTS:
            raise KvsimError(f"trace {path} must have at most {MOST_REQUESTS:,} requests, got more")
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    return requests(
        path,
        "ServeGen",
        joined["input_tokens"],
        joined["output_tokens"],
        joined["arrival"],
        labels={"client": np.concatenate(clients)},
        notes=[f"Drawn from ServeGen's model of {len(traces):,} clients, prompt and answer apart."],
    )


def _arrivals(windows: list[Window], rng: np.random.Generator) -> FloatColumn:
    """Draw gaps in each window until it ends; the last window is as long as the previous one."""
    found: list[FloatColumn] = []
    ends = [begun for begun, *_ in windows[1:]]
    last = windows[-1][0] - windows[-2][0] if len(windows) > 1 else 600.0
    for (begun, name, shape, scale), end in zip(windows, [*ends, windows[-1][0] + last], strict=True):
        if not name:
            continue
        now = begun
        while now < end:
            many = int(1.2 * (end - now) / max(shape * scale, 1e-9)) + 16
            if many > MOST_REQUESTS:
                raise KvsimError(
                    f"ServeGen's window at {begun:g} s must have at most {MOST_REQUESTS:,} requests"
                )
            gaps = rng.gamma(shape, scale, many) if name == "Gamma" else scale * rng.weibull(shape, many)
            times = now + np.cumsum(gaps)
            found.append(times[times < end])
            now = float(times[-1])
    return np.concatenate(found) if found else np.zeros(0)


def _windows(file: Path) -> list[Window]:
    found: list[Window] = []
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            for line, row in enumerate(csv.reader(lines_of(file, opened)), start=1):
                where = f"trace {file}, line {line}"
                if len(row) != 6:
                    raise KvsimError(f"{where}: must have 6 columns, got {len(row)}")
                if row[3] not in ("Gamma", "Weibull", ""):
                    raise KvsimError(f"{where}: gaps must be Gamma or Weibull, got {shown(row[3])}")
                try:
                    begun, shape, scale = float(row[0]), float(row[4] or 0), float(row[5] or 0)
                except ValueError as error:
                    raise KvsimError(f"{where}: must hold numbers, got {shown(row)}") from error
                if row[3] and not (0 < shape < 1e6 and 0 < scale < 1e9):
                    raise KvsimError(f"{where}: shape and scale must be above 0, got {row[4]} and {row[5]}")
                if found and begun <= found[-1][0]:
                    raise KvsimError(
                        f"{where}: windows must be in order, got {begun:g} after {found[-1][0]:g}"
                    )
                found.append((begun, row[3], shape, scale))
    except OSError as error:
        raise KvsimError(f"trace {file} cannot be read: {error.strerror or error}") from error
    if not found:
        raise KvsimError(f"trace {file} must have at least one window, got none")
    return found


def _lengths(file: Path) -> list[tuple[float, Mapping[str, Distribution]]]:
    """Each window's start, and its distributions."""
    content = read_object(file, f"trace {file}")
    found = []
    for begun, fields in content.items():
        where = f"trace {file}, window {begun}"
        try:
            parts = {name: _distribution(where, name, fields[name]) for name in LENGTHS}
            if all(len(values) for values, _ in parts.values()):
                found.append((float(begun), parts))
        except KvsimError:
            raise
        except (KeyError, TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise KvsimError(f"{where}: must have {' and '.join(LENGTHS)}, tokens -> share") from error
    return sorted(found, key=lambda each: each[0])


def _distribution(where: str, name: str, text: object) -> Distribution:
    """Parse a distribution given as the text `{tokens: share}`."""
    shares = ast.literal_eval(text) if isinstance(text, str) else text
    if not isinstance(shares, dict):
        raise KvsimError(f"{where}: {name} must be tokens -> share, got {shown(text)}")
    tokens = np.array([int(each) for each in shares], dtype=np.float64)
    chance = np.array([float(each) for each in shares.values()])
    if len(tokens) and (chance.min() < 0 or not chance.sum() > 0):
        raise KvsimError(
            f"{where}: {name} must have shares of at least 0 that sum to more, got {shown(text)}"
        )
    reached = np.cumsum(chance)
    return tokens.clip(1), reached / reached[-1] if len(reached) else reached
