"""OpenTelemetry spans of model calls (GenAI conventions): a trace of a user's server or agent.

    {"resourceSpans": [{"scopeSpans": [{"spans": [                       OTLP, as collectors write it
      {"startTimeUnixNano": "17...", "attributes": [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "812"}}, ...]}]}]}]}
    {"start_time": "2026-02-03T10:00:00Z",                               SDKs, one span per line
     "attributes": {"gen_ai.usage.input_tokens": 812, ...}}

A request is a span with `gen_ai.usage.input_tokens` and `gen_ai.usage.output_tokens` (or their older names);
other spans are counted and left out. Its session is `gen_ai.conversation.id`, else its trace if that has
several requests. Arrivals are relative to the first. The spans do not say what prompts share.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import numpy as np

from kvsim.sim.errors import KvsimError
from kvsim.workloads.json_stream import ObjectStream
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.usable import from_first, requests
from kvsim.workloads.values import shown

INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens")
OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.usage.completion_tokens")
SESSION = ("gen_ai.conversation.id", "session.id")
_VALUES = ("intValue", "doubleValue", "stringValue", "boolValue")


def load_otel(path: str) -> Lengths:
    """The requests of a file, in order of arrival.

    Raises
    ------
    KvsimError
        A file that cannot be read, or a value that is not a number.
    """
    columns: dict[str, list[float]] = {"start": [], "input": [], "output": []}
    sessions: list[str] = []
    other = 0
    try:
        with open(path, "rb") as file:
            stream = ObjectStream(path, file)
            for line, found in stream:
                for span in _spans(found):
                    where = f"trace {path}, line {line}"
                    about = _attributes(span.get("attributes"))
                    counts = [_count(where, about, names) for names in (INPUT, OUTPUT)]
                    if counts[0] is None or counts[1] is None:
                        other += 1
                        continue
                    columns["start"].append(_start(where, span))
                    columns["input"].append(counts[0])
                    columns["output"].append(counts[1])
                    named = next((str(about[name]) for name in SESSION if about.get(name)), None)
                    sessions.append(named or str(_trace_id(span)))
    except OSError as error:
        raise KvsimError(f"trace {path} cannot be read: {error.strerror or error}") from error
    several = len(set(sessions)) < len(sessions)
    notes = [f"{other:,} spans without token counts left out."] if other else []
    if stream.cut_off:
        notes.append("The file is cut off: the spans before are read.")
    return requests(
        path,
        "OpenTelemetry",
        np.array(columns["input"]),
        np.array(columns["output"]),
        from_first(np.array(columns["start"])),
        labels={"session": np.array(sessions, dtype=object)} if several else {},
        notes=notes,
    )


def _spans(found: object) -> Iterator[Mapping[str, Any]]:
    if not isinstance(found, dict):
        return
    if "resourceSpans" not in found:
        yield found
        return
    for resource in _objects(found["resourceSpans"]):
        for scope in _objects(resource.get("scopeSpans", resource.get("instrumentationLibrarySpans"))):
            yield from _objects(scope.get("spans"))


def _objects(found: object) -> list[Mapping[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _attributes(found: object) -> Mapping[str, Any]:
    """Name -> value, from a mapping or OTLP's list."""
    if isinstance(found, dict):
        return found
    named = {}
    for each in _objects(found):
        value = each.get("value")
        if isinstance(value, dict):
            value = next((value[kind] for kind in _VALUES if kind in value), None)
        named[str(each.get("key"))] = value
    return named


def _count(where: str, about: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        value = about.get(name)
        if value is None:
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = -1.0
        if not (0 <= number <= 1e9 and number == int(number)) or isinstance(value, bool):
            raise KvsimError(f"{where}: {name} must be a whole number, got {shown(value)}")
        return number
    return None


def _start(where: str, span: Mapping[str, Any]) -> float:
    """The start of a span, in seconds."""
    context = span.get("startTimeUnixNano", span.get("start_time_unix_nano"))
    try:
        if context is not None:
            return int(context) / 1e9
        value = span.get("start_time", span.get("startTime"))
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value / 1e9 if value > 1e14 else float(value)
        return datetime.fromisoformat(str(value)).timestamp()
    except (TypeError, ValueError, OverflowError):
        given = span.get("startTimeUnixNano", span.get("start_time"))
        raise KvsimError(f"{where}: a span's start must be a time, got {shown(given)}") from None


def _trace_id(span: Mapping[str, Any]) -> object:
    context = span.get("context")
    inner = context.get("trace_id") if isinstance(context, dict) else None
    return span.get("traceId", span.get("trace_id", inner))
