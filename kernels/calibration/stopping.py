"""SIGTERM ends a calibration as Ctrl-C does, leaving a complete journal."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


def exit_code(stop: KeyboardInterrupt) -> int:
    """The exit code that a shell expects: 128 plus the signal's number."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


@contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM raise Terminated while the block runs; no effect outside the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
