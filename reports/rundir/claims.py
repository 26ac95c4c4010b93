"""Claim an output directory before the work, so that of two processes that want it one fails at once.

    runs/.NAME.kvsim-claim    an empty file, locked by the process that writes runs/NAME, removed at its end

The lock ends with its process, however that ends, so no process waits for a dead one. On file systems without
locks nothing is claimed, and the second process fails when it moves its results into place.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.marker import foreign, leftovers, read_marker, remove_leftover
from kvsim.sim.files.whole_file import explained

_NAMED = 3
_TRIES = 100


class Taken(KvsimError):
    """Another process is writing there, or has written there."""


@dataclass(frozen=True)
class Claim:
    """A directory that only this process may write: path as given, real path, whether to replace it."""

    path: Path
    target: Path
    force: bool


@contextmanager
def claimed(directory: Path, force: bool = False) -> Iterator[Claim]:
    """Claim a directory to be created; with `force`, also one that exists and was written by kvsim.

    Leftovers of killed processes are removed. Parents are created, and removed again if they stay empty.

    Raises
    ------
    Taken
        Another process holds it, or it exists.
    KvsimError
        It cannot be written, or contains files that are not kvsim's.
    """
    target = Path(os.path.realpath(directory.parent)) / directory.name
    if directory.name in ("", ".."):
        target = Path(os.path.realpath(directory))
    check_replaceable(directory, target, force)
    with explained(directory):
        parents = [above for above in target.parents if not above.exists()]
        handle = _locked(directory, target)
    try:
        with explained(directory):
            _sweep(target)
            check_replaceable(directory, target, force)
        yield Claim(directory, target, force)
    finally:
        _release(handle, _claim_file(target))
        for parent in parents:
            with suppress(OSError):
                parent.rmdir()


@contextmanager
def first_free(directory: Path) -> Iterator[Claim]:
    """Claim the first of NAME, NAME-2, NAME-3, ... that does not exist and is not claimed."""
    with ExitStack() as held:
        for number in count(1):
            name = directory.name if number == 1 else f"{directory.name}-{number}"
            with suppress(Taken):
                claim = held.enter_context(claimed(directory.with_name(name)))
                break
        yield claim


def check_replaceable(directory: Path, target: Path, force: bool) -> None:
    """Raise KvsimError unless nothing is there, or with `force` only kvsim's files are."""
    with explained(directory):
        if not os.path.lexists(target):
            return
        if target.is_symlink():
            leads = os.readlink(target)
            raise Taken(f"cannot write {directory}: it is a link to {leads}: name that directory itself")
        if not target.is_dir():
            raise Taken(f"cannot write {directory}: it exists and is not a directory")
        others = foreign(target)
        if others and read_marker(target) is None:
            raise Taken(
                f"output directory {directory} exists and is not a kvsim run, or one of an older version "
                f"({_named(others)}): choose another"
            )
        if not force:
            raise Taken(f"output directory {directory} exists; pass --force to replace it")
        if others:
            raise KvsimError(
                f"output directory {directory} holds what kvsim did not write ({_named(others)}): "
                "move it away, or choose another"
            )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _claim_file(target: Path) -> Path:
    return target.with_name(f".{target.name}.kvsim-claim")


def _locked(directory: Path, target: Path) -> int | None:
    """Lock a path; returns the open file, or None without lock support. Raises Taken if it is locked."""
    file = _claim_file(target)
    for last in (*[False] * _TRIES, True):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(file, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except FileNotFoundError:  # the process that created the parents has just removed them
            if last:
                raise
            continue
        except (FileExistsError, NotADirectoryError):
            above = next(each for each in target.parents if each.exists())
            raise KvsimError(f"cannot write {directory}: {above} is not a directory") from None
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = os.stat(file)
        except ImportError:  # Windows
            os.close(handle)
            file.unlink(missing_ok=True)
            return None
        except FileNotFoundError:  # released and removed between our two calls
            os.close(handle)
            continue
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(handle)
                raise Taken(f"cannot write {directory}: another kvsim is at work on it") from None
            return handle
        if os.path.samestat(os.fstat(handle), there):
            return handle
        os.close(handle)
    raise Taken(f"cannot write {directory}: other kvsims are at work on it")


def _release(handle: int | None, file: Path) -> None:
    if handle is None:
        return
    with suppress(OSError):
        if os.fstat(handle).st_size == 0:
            file.unlink()
    os.close(handle)


def _sweep(target: Path) -> None:
    """Remove leftovers of killed processes; an earlier run that one had moved aside is restored."""
    for role, left in leftovers(target):
        if role == "old" and not os.path.lexists(target) and read_marker(left) is not None:
            left.rename(target)
        else:
            remove_leftover(left)
