"""Directories that appear whole or not at all; an earlier run is replaced only where that was asked for."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kvsim.sim.errors import KvsimError


def check_target(directory: Path, force: bool = False) -> None:
    """Raise KvsimError now if `write_run` could not write there: call it before a long simulation."""
    target = real(directory)
    with explained(directory):
        if os.path.lexists(target):
            _check_replaceable(directory, target, force)
        parent = next(above for above in target.parents if above.exists())
        if not parent.is_dir():
            raise KvsimError(f"cannot write {directory}: {parent} is not a directory")
        probe = _beside(parent / target.name, "probe")
        try:
            probe.touch()
        finally:
            probe.unlink(missing_ok=True)


@contextmanager
def whole_directory(directory: Path, force: bool = False) -> Iterator[Path]:
    """Give a fresh hidden directory to fill; it becomes `directory` if the block ends well.

    After any exception, an interrupt too, nothing is left: not the files, not the parents made for
    them; what stood at `directory` still stands there.
    """
    check_target(directory, force)
    target = real(directory)
    part = _beside(target, "partial")
    with explained(directory):
        new_parents = [above for above in target.parents if not above.exists()]
        try:
            shutil.rmtree(part, ignore_errors=True)  # left by a killed process that had our number
            part.mkdir(parents=True)
            yield part
            if os.path.lexists(target):  # it may have come meanwhile
                _check_replaceable(directory, target, force)
            _put_in_place(part, target)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            for parent in new_parents:
                with suppress(OSError):
                    parent.rmdir()
            raise


def _put_in_place(part: Path, target: Path) -> None:
    """Rename `part` to `target`, moving what stands there aside until the new one is in its place."""
    if not target.exists():
        part.rename(target)
        return
    old = _beside(target, "old")
    try:
        target.rename(old)
        part.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    finally:
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)


def _check_replaceable(directory: Path, target: Path, force: bool) -> None:
    if not target.is_dir():
        raise KvsimError(f"cannot write {directory}: it exists and is not a directory")
    ours = (("config.json", "summary.json"), ("results.json", "report.md"))
    is_run = any(all((target / name).is_file() for name in names) for names in ours)
    if not is_run and any(target.iterdir()):
        raise KvsimError(f"output directory {directory} exists and is not a kvsim run: choose another")
    if not force:
        raise KvsimError(f"output directory {directory} exists; pass --force to replace it")


def real(directory: Path) -> Path:
    """Where the directory lies once links are followed: a rename must not replace the link."""
    return Path(os.path.realpath(directory))


def _beside(target: Path, role: str) -> Path:
    return target.with_name(f".{target.name}.{role}-{os.getpid()}")


@contextmanager
def explained(directory: Path) -> Iterator[None]:
    """Turn what the file system refuses into one plain sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise KvsimError(f"cannot write {directory}: the disk is full; nothing was kept") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise KvsimError(f"cannot write {directory}: no permission to write there") from error
        raise KvsimError(f"cannot write {directory}: {error.strerror or error}") from error
