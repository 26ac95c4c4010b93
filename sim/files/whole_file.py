"""Writes files whole or not at all, and never over a file that kvsim did not write."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.marker import add_files, hidden, is_data, leftovers, read_marker, remove_leftover
from kvsim.sim.files.stopping import unstoppable


def check_file(path: Path, *, force: bool = False, ours: Callable[[Path], bool] | None = None) -> None:
    """Raise KvsimError unless the file may be written; to be called before long work.

    Parameters
    ----------
    force : bool
        Whether to replace a file that kvsim did not write; links and data of runs are never replaced.
    ours : callable
        Takes an existing file's content; returns whether kvsim wrote it.
    """
    with explained(path):
        if is_data(path):
            raise KvsimError(f"cannot write {path}: the name is that of a run's own file: choose another")
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            return
        if stat.S_ISLNK(mode):
            raise KvsimError(
                f"cannot write {path}: it is a link to {os.readlink(path)}: name that file itself"
            )
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "no regular file"
            raise KvsimError(f"cannot write {path}: it is {what}")
        marked = read_marker(path.parent)
        if force or (marked and path.name in marked.files) or (ours and ours(path)):
            return
    raise KvsimError(f"{path} exists, and nothing says that kvsim wrote it; pass --force to replace it")


@contextmanager
def whole_file(
    path: Path, *, force: bool = False, ours: Callable[[Path], bool] | None = None
) -> Iterator[Path]:
    """Yield the name of an empty hidden file to fill; it becomes `path` if the block succeeds.

    In a marked directory it is then listed. Arguments as in `check_file`.
    """
    check_file(path, force=force, ours=ours)
    with explained(path):
        for _, left in leftovers(path):
            remove_leftover(left)
        part = hidden(path)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            yield part
            with unstoppable():
                check_file(path, force=force, ours=ours)  # it may have appeared meanwhile
                part.replace(path)
                add_files(path.parent, [path.name])
        finally:
            with suppress(FileNotFoundError):
                part.unlink()


@contextmanager
def explained(path: Path, kept: str = "") -> Iterator[None]:
    """Turn file system errors into one plain sentence; `kept` says what remains when the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            left = f"; {kept}" if kept else ""
            raise KvsimError(f"cannot write {path}: the disk is full{left}") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise KvsimError(f"cannot write {path}: no permission to write there") from error
        raise KvsimError(f"cannot write {path}: {error.strerror or error}") from error
