"""A progress bar on stderr for long runs; it appears within a second, and only on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

PATIENCE_S = 0.5
_GLANCE_S = 0.1
Total = int | Callable[[], int]
LEAST_WIDTH = 60
"""Terminals at least so wide show the bar and what is counted; in narrower ones only the numbers fit."""


def left(done: float, total: float | None, elapsed_s: float | None, longest_s: float = 0.0) -> str:
    """`1:05 left`; while nothing is done `up to 1:05 left`, or "" if it takes longer than `longest_s`."""
    if not total or elapsed_s is None or (not done and elapsed_s >= longest_s):
        return ""
    time = clock(elapsed_s / done * (total - done) if done else longest_s - elapsed_s)
    return f"{time} left" if done else f"up to {time} left"


def clock(duration_s: float) -> str:
    """A time as on a clock: `0:07`, `12:30`, `1:02:03`."""
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def progress(
    label: str,
    total: Total,
    done: Callable[[], int],
    unit: str = "requests",
    longest_s: Callable[[], float] | None = None,
) -> Iterator[None]:
    """Show how many of `total` requests, or of another unit, are done while the block runs.

    A total that is not known yet is polled; 0 means unknown.
    A separate thread calls `done` ten times per second, so the block need not report anything.
    `longest_s` is called once, for what to show while nothing is done yet.
    """
    if not sys.stderr.isatty():
        yield
        return
    with watched_by(_watch, label, total, done, unit, longest_s() if longest_s else 0.0):
        yield


@contextmanager
def watched_by(watch: Callable[..., None], *arguments: Any) -> Iterator[None]:  # noqa: ANN401 - its own
    """Call `watch` in a thread beside the block, with an event that is set at the end and these arguments."""
    over = Event()
    watcher = Thread(target=watch, args=(over, *arguments), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(  # noqa: PLR0917 - of a thread
    over: Event, label: str, total: Total, done: Callable[[], int], unit: str, longest_s: float
) -> None:
    if over.wait(PATIENCE_S):
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        Task,
        TextColumn,
    )
    from rich.text import Text

    class Share(TextColumn):
        """The share done and the time left at the average speed so far."""

        def render(self, task: Task) -> Text:
            time_left = left(task.completed, task.total, task.elapsed, longest_s)
            return Text(", ".join(filter(None, [f"{word}{task.percentage:.0f} %", time_left])))

    size = total if callable(total) else lambda: total
    of = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    console = Console(stderr=True)
    console.width -= len("^C ")  # the terminal's echo must not break the line
    wide = console.width >= LEAST_WIDTH
    word = "" if unit == "bytes" or not wide else f"{unit}, "
    named = (TextColumn("{task.description}"), BarColumn(bar_width=None)) if wide else ()
    with Progress(*named, of, Share(""), console=console, transient=True, speed_estimate_period=120) as bar:
        task = bar.add_task(label, total=size() or None)
        while not over.wait(_GLANCE_S):
            bar.update(task, completed=done(), total=size() or None)
