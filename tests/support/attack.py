"""One attack on the command line: it does as asked, or says in one line why not; nothing else.

`attack` runs a command line in this process. Its exit code must be 0, or 2 with one line on standard error
that begins with `error: `; no exception may escape, no warning may be printed, and it may not take more than
LONGEST_CPU_S or LONGEST_S. Memory is limited, so that a size of 10**12 is refused and not tried; a refusal
takes at most REFUSAL_BYTES.
"""

import contextlib
import io
import re
import resource
import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest import mock

from kvsim import cli

LONGEST_CPU_S, LONGEST_S = 10, 90
REFUSAL_BYTES = 1 << 30
LONGEST_LINE = 1200
"""Characters of an error: a wrong value is shown shortened."""
MEMORY_BYTES = 6 << 30
"""In addition to the memory that the process has; more than any case needs."""


class TooLong(BaseException):
    """A case took too long. Not an Exception, which the command would report as a mistake."""


class Told(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


def attack(words: Sequence[str]) -> Told:
    """Carry out a command line and check its outcome."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict") for _ in range(2))
    with (
        limited(),
        warnings.catch_warnings(record=True) as warned,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        warnings.simplefilter("always")
        try:
            before = peak_bytes(anew=True)
            code = cli.main([*words])
        except BaseException as error:
            raise AssertionError(f"{shown(words)} ended with {traceback.format_exc()}") from error
    told = Told(code, *(_text(stream) for stream in (out, err)))
    check(words, told)
    assert not warned, f"{shown(words)}: {warned[0].category.__name__}: {warned[0].message}"
    assert not code or peak_bytes() - before < REFUSAL_BYTES, f"{shown(words)}: took much memory to refuse"
    return told


def tried(name: str, cases: int, case: Callable[[Random], Told | None]) -> Counter[str]:
    """Try cases 0 to `cases - 1` of a fuzzer; how many were accepted, and how many refused.

    Raises
    ------
    AssertionError
        With the number of each case that went wrong, grouped by kind.
    """
    found, faults = Counter[str](), {}
    for number in range(cases):
        rng = Random(f"{name} {number}")
        try:
            told = case(rng)
        except AssertionError as error:
            found["faults"] += 1
            kind = (str(error).splitlines() or ["without a word"])[-1]
            faults.setdefault(kind[:200], (number, str(error)))
        else:
            found["refused" if told is not None and told.code else "accepted"] += 1
    print(f"{name}: {cases:,} cases, {dict(found)}")
    if faults:
        each = "\n".join(f"--- case {number} of {name}: {text}" for number, text in faults.values())
        raise AssertionError(f"{found['faults']:,} of {cases:,} cases went wrong:\n{each}")
    return found


def check(words: Sequence[str], told: Told) -> None:
    """Raise AssertionError unless a command succeeded, or reported its mistake in one line."""
    lines = told.err.splitlines()
    if told.code == 1 and words[0] in ("sweep", "capacity"):  # some of its runs failed, each with its reason
        assert lines and all(line.startswith(("error: failed: ", "impossible: ")) for line in lines), (
            f"{shown(words)}: {told.err}"
        )
        return
    assert told.code in (0, 2), f"{shown(words)}: exit code {told.code}\n{told.err}"
    assert "Traceback" not in told.err, f"{shown(words)}: {told.err}"
    assert "Warning" not in told.err, f"{shown(words)}: {told.err}"
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == (told.code == 2), f"{shown(words)}: {told.err}"
    if errors:
        assert lines[-1] == errors[0], f"{shown(words)}: {told.err}"
        assert len("error: ") < len(errors[0]) < LONGEST_LINE, f"{shown(words)}: {told.err!r}"
        assert errors[0].isprintable(), f"{shown(words)}: {told.err!r}"


def peak_bytes(anew: bool = False) -> int:
    """The peak memory of this process, from now on if `anew`; 0 if Linux does not tell."""
    try:
        if anew:
            Path("/proc/self/clear_refs").write_text("5")
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0


def shown(words: Sequence[str]) -> str:
    """A command line in a form that can be passed to a test again."""
    return ascii([*words])


@contextlib.contextmanager
def workers_here() -> Iterator[None]:
    """A block in which a sweep's runs happen in this process, within its limits: no other is started."""

    @contextlib.contextmanager
    def here(function: Callable, arguments: Sequence[tuple], jobs: int) -> Iterator[Iterator[tuple]]:
        yield ((number, function(*each)) for number, each in enumerate(arguments))

    with mock.patch("kvsim.reports.backends.unordered_apart", here):
        yield


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """A block that may take LONGEST_CPU_S, LONGEST_S and MEMORY_BYTES."""

    def too_long(*_: object) -> None:
        raise TooLong(f"more than {LONGEST_CPU_S} s of CPU, or {LONGEST_S} s")

    with open("/proc/self/statm") as file:
        there = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (there + MEMORY_BYTES, before[1]))
    spent = signal.signal(signal.SIGPROF, too_long)
    signal.alarm(LONGEST_S)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_CPU_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.signal(signal.SIGPROF, spent)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _text(stream: io.TextIOWrapper) -> str:
    with contextlib.suppress(ValueError):
        stream.flush()
    return stream.buffer.getvalue().decode("utf-8", "surrogateescape")
