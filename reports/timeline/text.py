"""Pieces of the Trace Event Format as text."""

import json
from collections.abc import Mapping
from typing import Any


def micro(time_ns: int) -> str:
    """Nanoseconds as microseconds, the format's unit, without rounding."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def quoted(value: Any) -> str:  # noqa: ANN401 - JSON is any value
    """The value as JSON."""
    return json.dumps(value, ensure_ascii=False)


def named(pid: int, tid: int, what: str, args: Mapping[str, Any]) -> str:
    """A metadata event: the name or the sort position of a process or thread."""
    return f'{{"ph": "M", "pid": {pid}, "tid": {tid}, "name": "{what}", "args": {quoted(args)}}}'


def complete(  # noqa: PLR0917 - the parts of an event
    pid: int, tid: int, start_ns: int, end_ns: int, name: str, category: str, args: Mapping[str, Any]
) -> str:
    """A slice of a thread."""
    return (
        f'{{"ph": "X", "pid": {pid}, "tid": {tid}, "ts": {micro(start_ns)}, '
        f'"dur": {micro(end_ns - start_ns)}, "cat": "{category}", "name": {quoted(name)}, '
        f'"args": {quoted(args)}}}'
    )


def instant(  # noqa: PLR0917 - the parts of an event
    pid: int, tid: int, time_ns: int, name: str, category: str, args: Mapping[str, Any]
) -> str:
    """An instant event on a thread."""
    return (
        f'{{"ph": "i", "s": "t", "pid": {pid}, "tid": {tid}, "ts": {micro(time_ns)}, '
        f'"cat": "{category}", "name": {quoted(name)}, "args": {quoted(args)}}}'
    )
