"""How far a long run is, as a bar on stderr: after two seconds, and only if somebody can see it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

PATIENCE_S = 2.0
_GLANCE_S = 0.1


@contextmanager
def progress(
    label: str, total: int | Callable[[], int], done: Callable[[], int], unit: str = "requests"
) -> Iterator[None]:
    """Show how many of `total` requests, or of another unit, are done while the block runs.

    A total that is not known yet is asked for again and again; 0 is not known at all.
    `done` is asked ten times a second by a thread of its own, so the block need not report anything.
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
        TextColumn,
        TimeRemainingColumn,
    )

    size = total if callable(total) else lambda: total
    of = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    word = "" if unit == "bytes" else f"{unit}, "

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        of,
        TextColumn(word + "{task.percentage:.0f} %,"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    console = Console(stderr=True)
    console.width -= len("^C ")  # what the terminal echoes must not break the line
    with Progress(*columns, console=console, transient=True, speed_estimate_period=120) as bar:
        task = bar.add_task(label, total=size() or None)
        while not over.wait(_GLANCE_S):
            bar.update(task, completed=done(), total=size() or None)
