"""Sessions of coding agents, as in kv-cache-tester (Weka) and SemiAnalysis' cc-traces: an object each.

    {"id": "trace_0001", "block_size": 64, "hash_id_scope": "local", "requests": [
      {"t": 0.0, "type": "s", "in": 20064, "out": 797, "hash_ids": [1, 2, ...], "think_time": 0},
      {"t": 31.0, "type": "subagent", "agent_id": "a", "requests": [{"t": 0.0, ...}, ...]},
      {"t": 186.0, "type": "n", "in": 29372, "out": 1033, "hash_ids": [1, 2, ...], "think_time": 12.5}]}

    parent     |1| tool |2|------------------ waits ------------------|3|
    subagent            '-> |a1| tool |a2| tool |a3| -'

A request arrives `think_time` (of the tools and the user) after the answer to the previous one. If missing,
this is the time between the two requests minus the duration of the answer (`api_time`). A request that
follows subagents waits for the one that ends last. Times of subagents are relative to their own start in some
files and to the session's in others; times before the subagent's start must be relative to its own.

Ids are local to a session unless `hash_id_scope` is "global", and may be below 1. The last block may be
partial, with or without an id.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.sim.errors import KvsimError, ends
from kvsim.workloads.hashed import BlockTexts
from kvsim.workloads.json_stream import ObjectStream
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.usable import possible, requests
from kvsim.workloads.values import shown

BLOCK_TOKENS = 64
NO_CALL = -1


@dataclass
class _Calls:
    """The calls collected from all sessions, a list per column."""

    arrival_s: list[float] = field(default_factory=list)
    prompt: list[float] = field(default_factory=list)
    output: list[float] = field(default_factory=list)
    session: list[str] = field(default_factory=list)
    agent: list[str] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    delay_s: list[float] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)
    known: dict[tuple[str, int], int] = field(default_factory=dict)
    blocks: set[int] = field(default_factory=set)


def load_weka(path: str) -> Lengths:
    """The requests of a file, or of every session in a directory, in order of arrival.

    Raises
    ------
    KvsimError
        A file that cannot be read, or a value of the wrong type.
    """
    calls, cut = _Calls(), 0
    for file in sorted(Path(path).glob("*.json")) if Path(path).is_dir() else [Path(path)]:
        try:
            with open(file, "rb") as opened:
                stream = ObjectStream(str(file), opened)
                for line, session in stream:
                    _session(f"trace {file}, line {line}", session, calls)
                cut += stream.cut_off
        except OSError as error:
            raise KvsimError(f"trace {file} cannot be read: {error.strerror or error}") from error
    if len(calls.blocks) > 1:
        raise KvsimError(
            f"trace {path}: block_size must be the same in all sessions, got {sorted(calls.blocks)}"
        )
    texts = BlockTexts(next(iter(calls.blocks), BLOCK_TOKENS))
    lengths = np.nan_to_num(np.array(calls.prompt)).clip(0).astype(np.int64)
    counts = np.array([len(each) for each in calls.ids], dtype=np.int64)
    texts.add(lengths, counts, np.array([each for one in calls.ids for each in one], dtype=np.int64))
    texts.short = 0  # a partial last block without an id is normal here
    notes = [*texts.notes(), *(["The file is cut off: the sessions before are read."] if cut else [])]
    return requests(
        path,
        "Weka",
        np.array(calls.prompt),
        np.array(calls.output),
        np.array(calls.arrival_s),
        texts=texts.texts(),
        labels={
            "session": np.array(calls.session, dtype=object),
            "agent": np.array(calls.agent, dtype=object),
            "call": np.arange(len(calls.prompt)),
            "after": np.array(calls.after, dtype=np.int64),
            "delay_s": np.array(calls.delay_s),
        },
        notes=notes,
    )


def _session(where: str, session: object, calls: _Calls) -> None:
    if not isinstance(session, dict):
        raise KvsimError(f"{where}: each session must be an object, got {shown(session)}")
    name = str(session.get("id", f"session {len(set(calls.session))}"))
    block = session.get("block_size", BLOCK_TOKENS)
    if not isinstance(block, int) or isinstance(block, bool) or block < 1:
        raise KvsimError(f"{where}: block_size must be a whole number of at least 1, got {shown(block)}")
    calls.blocks.add(block)
    scope = "" if session.get("hash_id_scope") == "global" else f"{len(calls.session)} {name}"
    _agent(f"{where}, session {ends(name)}", session, calls, _Place(name, "", scope, 0.0, NO_CALL, 0.0))


@dataclass(frozen=True)
class _Place:
    """Whose requests follow: a session's, or a subagent's."""

    session: str
    agent: str
    scope: str
    begun_s: float
    after: int
    ended_s: float
    """When the answer that its first request waits for was complete."""


def _agent(where: str, holder: Mapping[str, Any], calls: _Calls, place: _Place) -> tuple[int, float]:
    """Add the requests of a session or subagent; returns the last one, and when its answer was complete."""
    before, ended = place.after, place.ended_s
    waiting: list[tuple[int, float]] = []
    for number, each in enumerate(_requests(where, holder)):
        here = f"{where}, request {number}"
        at = place.begun_s + _number(here, each, "t") if place.agent else _number(here, each, "t")
        if each.get("type") == "subagent":
            waiting.append(_subagent(here, each, calls, place, (before, ended)))
            continue
        if waiting:  # it follows the subagent that ends last
            before, ended = max([(before, ended), *waiting], key=lambda one: one[1])
            waiting = []
        think = each.get("think_time")
        delay = at - ended if think is None else _number(here, each, "think_time")
        row = len(calls.prompt)
        calls.arrival_s.append(at)
        calls.prompt.append(_number(here, each, "in", whole=True))
        calls.output.append(_number(here, each, "out", whole=True))
        calls.session.append(place.session)
        calls.agent.append(place.agent)
        calls.after.append(before)
        calls.delay_s.append(max(delay, 0.0) if before != NO_CALL else 0.0)
        calls.ids.append(_ids(here, each, calls, place.scope))
        before, ended = row, at + (0.0 if each.get("api_time") is None else _number(here, each, "api_time"))
    return max([(before, ended), *waiting], key=lambda one: one[1])


def _subagent(
    where: str, each: Mapping[str, Any], calls: _Calls, place: _Place, before: tuple[int, float]
) -> tuple[int, float]:
    """Add the requests of a subagent; times before its start are relative to it."""
    begun = place.begun_s + _number(where, each, "t") if place.agent else _number(where, each, "t")
    inner = [_number(f"{where}, request {at}", one, "t") for at, one in enumerate(_requests(where, each))]
    own = bool(inner) and inner[0] < begun
    name = f"{place.agent}/{each.get('agent_id', 'subagent')}".lstrip("/")
    started = _Place(place.session, name, place.scope, begun if own else 0.0, *before)
    last, ended = _agent(where, each, calls, started)
    took = each.get("duration_ms")
    if isinstance(took, int | float) and not isinstance(took, bool):
        ended = max(ended, begun + took / 1e3)
    return last, max(ended, begun)


def _requests(where: str, holder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    found = holder.get("requests")
    if not isinstance(found, list):
        raise KvsimError(f"{where}: requests must be a list, got {shown(found)}")
    for number, each in enumerate(found):
        if not isinstance(each, dict):
            raise KvsimError(f"{where}, request {number}: must be an object, got {shown(each)}")
        yield each


def _number(where: str, each: Mapping[str, Any], name: str, whole: bool = False) -> float:
    value = each.get(name)
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not isfinite(value)
        or not possible(float(value), whole)
    ):
        kind = "a whole number" if whole else "a number"
        raise KvsimError(f"{where}: {name} must be {kind}, got {shown(value)}")
    return float(value)


def _ids(where: str, each: Mapping[str, Any], calls: _Calls, scope: str) -> list[int]:
    """The ids of a prompt's blocks, renumbered for the whole file by first appearance."""
    ids = each.get("hash_ids") or []
    if not isinstance(ids, list) or any(type(one) is not int for one in ids):
        raise KvsimError(f"{where}: hash_ids must be a list of whole numbers, got {shown(ids)}")
    known = calls.known
    return [known.setdefault((scope, one), len(known)) for one in ids]
