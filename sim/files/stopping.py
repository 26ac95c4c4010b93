"""Signals: SIGINT, SIGTERM and SIGHUP end a command like an exception, within two seconds.

    signal --> Stop raised in the main thread --> each block cleans up on exit --> 128 + number

Cleanup is not interrupted (`unstoppable`). If a command has not ended `GRACE_S` after the signal, because of
a long call into C or a library that swallowed the exception, a separate thread runs the `at_forced_exit`
actions and ends it.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Self

GRACE_S = 1.5
_AGAIN_S = 0.7
NUMBERS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stop(KeyboardInterrupt):
    """A signal asks the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code that a shell expects."""
        return 128 + self.number


def caused_by_stop(error: BaseException | None) -> bool:
    """Whether an exception was raised from a stop, as any import may do: `__set_name__` until Python 3.12."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


class Stopped(Exception):
    """A command was stopped and will report the state of its work itself."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _State:
    """State of the process, as signals are per process."""

    shielded = 0
    waiting: int | None = None
    last_will: list[Callable[[], None]] = []  # noqa: RUF012 - there is only one


class Stopping:
    """Lets signals, unless ignored, stop the block; has no effect outside the main thread.

    Attributes
    ----------
    exit_code : int or None
        The exit code that a shell expects after a signal; None if none came.
    """

    def __init__(self) -> None:
        self.exit_code: int | None = None

    def __enter__(self) -> Self:
        self._restoring: list[Callable[[], object]] = []
        if threading.current_thread() is not threading.main_thread():
            return self
        _State.waiting = None
        self._numbers = numbers = [number for number in NUMBERS if signal.getsignal(number) != signal.SIG_IGN]
        told, self._telling = os.pipe()
        if hasattr(os, "set_blocking"):  # not necessary on Windows
            os.set_blocking(self._telling, False)
        self._wakeup = signal.set_wakeup_fd(self._telling, warn_on_full_buffer=False)
        self._over = threading.Event()
        how = (told, numbers, self._over, threading.get_ident())
        self._watcher = threading.Thread(target=_watch, args=how, daemon=True)
        self._watcher.start()
        self._restoring = [
            partial(signal.signal, number, signal.signal(number, self._arrived)) for number in numbers
        ]
        told_before = sys.unraisablehook
        sys.unraisablehook = partial(_tell_unless_stop, told_before)
        self._restoring.append(partial(setattr, sys, "unraisablehook", told_before))
        return self

    def __exit__(self, *how: object) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for restore in self._restoring:
            restore()
        if self.exit_code is not None:  # the command is over: a second Ctrl-C need not stop anything
            for number in self._numbers:
                signal.signal(number, signal.SIG_IGN)
        self._over.set()
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._telling)
        self._watcher.join()

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self.exit_code = self.exit_code or 128 + number
        if _State.shielded:
            _State.waiting = number
            return
        raise Stop(number)


@contextmanager
def unstoppable() -> Iterator[None]:
    """Postpone a stop to the end of the block: for cleanup, and for steps that belong together."""
    _State.shielded += 1
    try:
        yield
    finally:
        _State.shielded -= 1
    if not _State.shielded and _State.waiting is not None:
        number, _State.waiting = _State.waiting, None
        raise Stop(number)


@contextmanager
def at_forced_exit(clean: Callable[[], None]) -> Iterator[None]:
    """Also run this if the command must be ended by force inside the block."""
    _State.last_will.append(clean)
    try:
        yield
    finally:
        _State.last_will.remove(clean)


def _tell_unless_stop(tell: Callable[[Any], object], ignored: Any) -> None:  # noqa: ANN401
    """Report an exception swallowed by a destructor or callback, except a stop, which is sent again."""
    if not isinstance(ignored.exc_value, Stop):
        tell(ignored)


def _watch(told: int, numbers: list[int], over: threading.Event, main: int) -> None:
    with open(told, "rb", buffering=0) as pipe:  # open to the end: more signals may come
        while (heard := pipe.read(1)) and heard[0] not in numbers:
            pass
        if heard:
            _end(heard[0], over, main)


def _end(number: int, over: threading.Event, main: int) -> None:
    """Raise the stop again if it was swallowed; then end the process."""
    if over.wait(_AGAIN_S):
        return
    if not _State.shielded and hasattr(signal, "pthread_kill"):  # a library swallowed the first one
        signal.pthread_kill(main, number)
    if over.wait(GRACE_S - _AGAIN_S):
        return
    for clean in reversed(_State.last_will):
        with suppress(Exception):
            clean()
    with suppress(OSError):
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, b"interrupted; nothing was written\n")
    os._exit(128 + number)
