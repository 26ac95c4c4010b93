"""The message for an uncaught exception: one line, by kind of exception.

    KvsimError                      its text, and exit code 2
    the machine and its files       the system's message, and the file; exit code 2
    numbers or texts beyond limits  which limit; exit code 2
    anything else                   a bug, in kvsim or in the user's own class: what, and where it was raised;
                                    exit code 1

KVSIM_TRACEBACK=1 prints the whole traceback before the line.
"""

import errno
import io
import os
import sys
import traceback

from kvsim.sim.errors import KvsimError, brief, ends, of_pyarrow

MISTAKE, BUG = 2, 1
"""Exit codes: the user's mistake; a bug in kvsim."""

TRACEBACK = "KVSIM_TRACEBACK"
"""If this environment variable is set, tracebacks are printed."""

_LIMITS: dict[type[Exception], str] = {
    MemoryError: "not enough memory",
    UnicodeError: "a text cannot be read or written",
    OverflowError: "a number is too large",
}
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def complaint(error: Exception) -> tuple[str, int]:
    """The line that reports an exception, and the exit code; prints the traceback if requested."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    said = _said(error)
    if said is not None:
        return printable(brief(f"error: {said}")), MISTAKE
    what = brief(_what_and_where(error))
    return printable(f"bug: {what}; please report it ({TRACEBACK}=1 shows all of it)"), BUG


def _said(error: Exception) -> str | None:
    """The message for an error that the user can fix; None for a bug."""
    text = str(error)
    if isinstance(error, KvsimError):
        return text
    if isinstance(error, OSError):
        return _of_file(error)
    for kind, meaning in _LIMITS.items():
        if isinstance(error, kind):
            return f"{meaning}: {text}" if text else meaning
    if of_pyarrow(error):
        return f"a table cannot be read or written: {text}"
    return "a name holds a null character" if text.startswith("embedded null") else None


def _of_file(error: OSError) -> str:
    """The file, and the system's message about it."""
    why = "the disk is full" if error.errno in _DISK_FULL else error.strerror or str(error)
    names = [ends(str(name)) for name in (error.filename, error.filename2) if name is not None]
    return f"{' -> '.join(names)}: {why}" if names else why


def _what_and_where(error: Exception) -> str:
    """The type of an exception, its text, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name}" if frames else ""
    text = str(error)
    return f"{type(error).__name__}{f': {text}' if text else ''}{where}"


def printable(text: str) -> str:
    """The text as one line; characters that a terminal cannot show, or would act upon, are escaped."""
    return "".join(
        mark if mark.isprintable() else mark.encode("unicode_escape").decode("ascii")
        for mark in " ".join(text.splitlines())
    )


def any_output() -> None:
    """Let standard output and error take any text, even if the terminal lacks characters or is closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
