"""How far a long run is, as a bar on stderr: after two seconds, and only if somebody can see it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

PATIENCE_S = 2.0
_GLANCE_S = 0.1


@contextmanager
def progress(label: str, total: int, done: Callable[[], int]) -> Iterator[None]:
    """Show how many of `total` requests are done while the block runs.

    `done` is asked ten times a second by a thread of its own, so the block need not report anything.
    """
    if not sys.stderr.isatty():
        yield
        return
    over = Event()
    watcher = Thread(target=_watch, args=(label, total, done, over), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(label: str, total: int, done: Callable[[], int], over: Event) -> None:
    if over.wait(PATIENCE_S):
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("requests, {task.percentage:.0f} %,"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    console = Console(stderr=True)
    console.width -= len("^C ")  # what the terminal echoes must not break the line
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)
        while not over.wait(_GLANCE_S):
            bar.update(task, completed=done())
