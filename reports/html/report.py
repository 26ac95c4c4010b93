"""Write the HTML report of run directories; maps are thinned to keep it below `LARGEST_BYTES`."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.reports import palette
from kvsim.reports.colours import colours_of, dashes_of, parts_of
from kvsim.reports.html import words
from kvsim.reports.html.arena import Arena, read_arena
from kvsim.reports.html.charts import chart_data, end_s
from kvsim.reports.html.fleets import fleets
from kvsim.reports.html.lives import SAID, STATUS, packed_events, packed_requests, packed_spans, tick_s
from kvsim.reports.html.numbers import numbers
from kvsim.reports.html.packing import Pack
from kvsim.reports.html.page import GENERATOR, page
from kvsim.reports.html.replay_page import replay_page
from kvsim.reports.html.sweep_page import sweep_page
from kvsim.reports.lives import words as life_words
from kvsim.reports.lives.apart import between_stays, lives_of, on_several, seen_by
from kvsim.reports.lives.event_log import EVENTS, EventLog, read_events
from kvsim.reports.lives.passed import passed_over
from kvsim.reports.lives.spans import STATES
from kvsim.reports.replays import is_replay, read_replay
from kvsim.reports.rundir.run import Run, read_runs
from kvsim.reports.sweeps.stored import is_sweep, read_sweep
from kvsim.sim import __version__
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.whole_file import check_file, whole_file

LARGEST_BYTES = 14_500_000
_FRAME_BYTES = 800_000  # scripts, style and the chart library
_LEAST_INSTANTS = 8
_SETTINGS = ("allocator", "scheduler", "policy", "max_num_seqs", "max_num_batched_tokens")
"""Engine settings that a request's story mentions."""


def write_report(directories: Sequence[Path], out: Path, force: bool = False) -> Path:
    """Write the page for runs and comparisons, one sweep or one replay, atomically; returns its path.

    Replaces an earlier page; any other file only with `force`.
    """
    for each in directories:
        if is_sweep(each) or is_replay(each):
            if len(directories) > 1:
                raise KvsimError(f"a sweep or a replay has a page of its own: give {each} alone")
            return _write(partial(_page_of, each), out, force)
    return write_page(words.distinct([run for each in directories for run in read_runs(each)]), out, force)


def write_page(runs: Sequence[Run], out: Path, force: bool = False) -> Path:
    """Write the page for runs with distinct labels, as `write_report` does."""
    return _write(lambda: report(runs), out, force)


def _page_of(directory: Path) -> str:
    if is_sweep(directory):
        return sweep_page(read_sweep(directory))
    return replay_page(*read_replay(directory))


def _write(page: Callable[[], str], out: Path, force: bool) -> Path:
    if out.is_dir():
        raise KvsimError(f"out must be a file, got the directory {out}")
    check_file(out, force=force, ours=_is_page)
    text = page()
    with whole_file(out, force=force, ours=_is_page) as part:
        part.write_text(text, encoding="utf-8")
    return out


def _is_page(path: Path) -> bool:
    """Whether a file is a page by kvsim, judging by its first bytes."""
    with path.open("rb") as file:
        return GENERATOR.encode() in file.read(2000)


def report(runs: Sequence[Run]) -> str:
    """The page for these runs."""
    packs: dict[str, str] = {}
    arenas: list[Arena | None] = []
    described: list[dict[str, Any]] = []
    groups = words.grouped([run.as_one for run in runs])
    runs = [run for group in groups for run in group]
    systems = []
    for system, run in enumerate(runs):
        group = next(number for number, group in enumerate(groups) if any(run is each for each in group))
        first = run is groups[group][0]
        systems.append({"label": run.label, "end": end_s(run), "group": group, "first": first})
        log = read_events(run.path)
        for server in run.replicas or [run]:
            about, arena, own = _described(run, server, log, mapped=first)
            about |= {"group": group, "first": first, "system": system, "replica": server.place}
            arenas.append(arena)
            for name, pack in own.items():
                packs[f"{name}-{len(described)}"] = pack.text()
                about[name] = pack.entries
            described.append(about)
    room = LARGEST_BYTES - _FRAME_BYTES - sum(map(len, packs.values()))
    for place, (about, maps) in enumerate(zip(described, _fitting(arenas, room), strict=True)):
        if maps is not None:
            pack, about["arena"], packs[f"map-{place}"] = maps
            about["map"] = pack.entries
    summaries = [run.summary for run in runs]
    looks = {name: palette.KINDS[name] for name in palette.kinds_of(summaries)}
    kinds = {
        name: {
            "colour": look.colour,
            "meaning": palette.meaning(name, summaries),
            "hatched": look.hatch == "////",
        }
        for name, look in looks.items()
    }
    data = {
        "version": __version__,
        "title": words.title(runs),
        "answer": words.answer(runs),
        "facts": words.facts(runs),
        "notes": words.notes(runs),
        "numbers": numbers(runs),
        "differences": words.differences_in_words(runs),
        "systems": systems,
        "runs": described,
        "groups": [words.group_label(group) for group in groups],
        "kinds": kinds,
        "wasteKinds": palette.WASTE,
        "colours": colours_of([parts_of(group[0].config) for group in groups]),
        "dashes": dashes_of([parts_of(group[0].config) for group in groups]),
        "charts": chart_data(runs, groups),
        "fleets": fleets(runs),
        "status": STATUS,
        "events": EVENTS,
        "states": STATES,
        "said": SAID,
        "words": life_words.for_page(),
    }
    return page(data["title"], data, packs)


def _described(
    run: Run, server: Run, log: EventLog | None, mapped: bool
) -> tuple[dict[str, Any], Arena | None, dict[str, Pack]]:
    """The page's data for one server of a run, its map, and its tables.

    Its requests are those it answered; its events and spans cover all requests that visited it.
    """
    requests, end = server.columns.requests, end_s(server)
    tick = tick_s(end_s(run) if on_several(run) else end)
    own = {"requests": packed_requests(requests, tick)}
    about: dict[str, Any] = {"label": server.label, "end": end, "tick": tick, "reasons": []}
    about["engine"] = {name: server.engine.get(name) for name in _SETTINGS}
    if log is not None:
        here, told = log.of_replica(server.place), lives_of(run, server, log)
        between = between_stays(run)
        own["events"] = packed_events(here, told, tick)
        own["spans"] = packed_spans(told, tick, between is not None)
        about |= {"reasons": here.reasons, "between": between}
        said = passed_over(seen_by(run, server, log), here)
        texts = about["passed"] = ["", *sorted(set(said.values()))]
        places = {text: place for place, text in enumerate(texts)}
        rows = [places[said.get(request, "")] for request in requests["request"].tolist()]
        own["requests"].add("passed", np.array(rows, np.int64))
    recorded = server.path / "map.parquet"
    return about, read_arena(recorded, server.place) if mapped and recorded.is_file() else None, own


_Packed = tuple[Pack, dict[str, Any], str]


def _fitting(arenas: Sequence[Arena | None], room: int) -> list[_Packed | None]:
    """The packed maps; while the total is too large, the largest map loses every other instant."""
    kept = list(arenas)
    packed = [_packed(arena) for arena in kept]
    while True:
        sizes = [0 if maps is None else len(maps[2]) for maps in packed]
        if sum(sizes) <= room:
            return packed
        place = sizes.index(max(sizes))
        if len(kept[place].map.instants) < 2 * _LEAST_INSTANTS:
            return packed
        kept[place] = kept[place].halved()
        packed[place] = _packed(kept[place])


def _packed(arena: Arena | None) -> _Packed | None:
    if arena is None:
        return None
    pack, about = arena.packed()
    return pack, about, pack.text()
