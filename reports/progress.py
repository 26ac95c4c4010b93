"""A progress bar on stderr for long runs; it appears within a second, and only on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

PATIENCE_S = 0.5
_GLANCE_S = 0.1


def left(done: float, total: float | None, elapsed_s: float | None) -> str:
    """`1:05 left`, or "" while nothing is done."""
    if not done or not total or elapsed_s is None:
        return ""
    minutes, seconds = divmod(round(elapsed_s / done * (total - done)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d} left" if hours else f"{minutes}:{seconds:02d} left"


@contextmanager
def progress(
    label: str, total: int | Callable[[], int], done: Callable[[], int], unit: str = "requests"
) -> Iterator[None]:
    """Show how many of `total` requests, or of another unit, are done while the block runs.

    A callable total is polled; 0 means unknown. A separate thread calls `done` ten times per second, so the
    block need not report anything.
    """
    if not sys.stderr.isatty():
        yield
        return
    over = Event()
    watcher = Thread(target=_watch, args=(label, total, done, unit, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(
    label: str, total: int | Callable[[], int], done: Callable[[], int], unit: str, over: Event
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

    word = "" if unit == "bytes" else f"{unit}, "

    class Share(TextColumn):
        """The share done and, once anything is done, the time left at the average speed so far."""

        def render(self, task: Task) -> Text:
            time_left = left(task.completed, task.total, task.elapsed)
            return Text(", ".join(filter(None, [f"{word}{task.percentage:.0f} %", time_left])))

    size = total if callable(total) else lambda: total
    of = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        of,
        Share(""),
    )
    console = Console(stderr=True)
    console.width -= len("^C ")  # room for the ^C that the terminal echoes
    with Progress(*columns, console=console, transient=True, speed_estimate_period=120) as bar:
        task = bar.add_task(label, total=size() or None)
        while not over.wait(_GLANCE_S):
            bar.update(task, completed=done(), total=size() or None)
