"""The marker of a directory made by kvsim: the list of files in it that kvsim wrote.

    out/.kvsim.json     {"kvsim": "0.1.0", "kind": "run", "files": ["config.json", ...], "directories": []}

Only files listed in a marker are ever replaced or removed. A subdirectory counts only if it has a marker of
its own. A marker that is damaged, is a link, or lists anything but plain names is ignored.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kvsim.sim import __version__

MARKER = ".kvsim.json"
UNFINISHED = "unfinished"
_DATA = (
    *("config.json", "summary.json", "requests.parquet", "timeline.parquet", "steps.parquet"),
    *("samples.parquet", "events.parquet", "map.parquet", "results.json", "report.md", MARKER),
)
_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<role>partial|old|probe)-(?P<pid>[0-9]+)")


@dataclass(frozen=True)
class Marked:
    """The content of a marker: the kind of directory, and the names that kvsim wrote into it."""

    kind: str
    files: frozenset[str]
    directories: frozenset[str]


def read_marker(directory: Path) -> Marked | None:
    """The marker of a directory; None if there is none, or none that can be trusted."""
    path = directory / MARKER
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
        lists = (found["files"], found["directories"])
        names = [name for names in lists for name in names]
        if not all(isinstance(names, list) for names in lists) or not all(
            isinstance(name, str) and Path(name).parts == (name,) and name != ".." for name in names
        ):
            return None
        return Marked(str(found["kind"]), frozenset(found["files"]), frozenset(found["directories"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def mark(directory: Path, kind: str) -> None:
    """Write the marker of a directory that kvsim wrote entirely; subdirectories must have their own."""
    names = sorted(path.name for path in directory.iterdir() if path.name != MARKER)
    directories = {name for name in names if (directory / name).is_dir()}
    _write(directory, Marked(kind, frozenset(names) - directories, frozenset(directories)))


def add_files(directory: Path, names: Iterable[str]) -> None:
    """Add names to the list of a marked directory, all or none; unmarked directories stay unmarked."""
    with _alone(directory):
        found = read_marker(directory)
        if found is not None and not found.files.issuperset(names := list(names)):
            _write(directory, Marked(found.kind, found.files.union(names), found.directories))


def _write(directory: Path, marked: Marked) -> None:
    value = {"kvsim": __version__, "kind": marked.kind}
    lists = {"files": sorted(marked.files), "directories": sorted(marked.directories)}
    part = hidden(directory / MARKER)
    try:
        part.write_text(json.dumps(value | lists, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        part.replace(directory / MARKER)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Lock a marker against changes by other processes, if the file system can."""
    try:
        import fcntl

        handle = os.open(directory, os.O_RDONLY)
    except (ImportError, PermissionError):  # Windows
        yield
        return
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def foreign(directory: Path) -> list[str]:
    """Entries of a directory that kvsim did not write, by relative name, except leftovers."""
    marked = read_marker(directory) or Marked("", frozenset(), frozenset())
    found = []
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        plain_file = entry.is_file(follow_symlinks=False)
        if plain_file and (entry.name in marked.files or entry.name == MARKER):
            continue
        if is_leftover(Path(entry.path)):
            continue
        folder = entry.is_dir(follow_symlinks=False)
        if folder and entry.name in marked.directories and read_marker(Path(entry.path)):
            found += [f"{entry.name}/{name}" for name in foreign(Path(entry.path))]
        else:
            found.append(f"{entry.name}/" if folder else entry.name)
    return found


def remove_marked(directory: Path) -> None:
    """Remove the files that kvsim wrote into a directory, and the directory if it is then empty."""
    marked = read_marker(directory)
    if marked is not None:
        for name in marked.directories:
            if (directory / name).is_dir() and not (directory / name).is_symlink():
                remove_marked(directory / name)
        for entry in os.scandir(directory):
            if is_leftover(Path(entry.path)):
                remove_leftover(Path(entry.path))
        for name in marked.files:
            path = directory / name
            if path.is_file() and not path.is_symlink():
                path.unlink()
        (directory / MARKER).unlink()
    with suppress(OSError):
        directory.rmdir()


def is_data(path: Path) -> bool:
    """Whether it is, or would be, a run's file that kvsim reads again: no report or figure goes there."""
    name, parent = path.name.casefold(), path.parent
    if name not in _DATA:
        return False
    return (
        name == MARKER or (parent / MARKER).is_file() or all((parent / each).is_file() for each in _DATA[:2])
    )


# -- unfinished files ---------------------------------------------------------------------------


def hidden(path: Path, role: str = "partial") -> Path:
    """The temporary name beside `path` under which this process prepares it."""
    return path.with_name(f".{path.name}.{role}-{os.getpid()}")


def leftovers(path: Path) -> list[tuple[str, Path]]:
    """What dead processes left beside `path`: role and path of each."""
    found = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for entry in os.scandir(path.parent):
            parts = _LEFTOVER.fullmatch(entry.name)
            if parts and parts["name"] == path.name and is_leftover(Path(entry.path)):
                found.append((parts["role"], Path(entry.path)))
    return sorted(found)


def is_leftover(path: Path) -> bool:
    """Whether a dead kvsim process left it: known by a file's name, or by a directory's name and marker."""
    parts = _LEFTOVER.fullmatch(path.name)
    if parts is None or path.is_symlink() or _lives(int(parts["pid"])):
        return False
    return not path.is_dir() or read_marker(path) is not None or not any(path.iterdir())


def remove_leftover(path: Path) -> None:
    """Remove a leftover: entirely if it was being prepared, else what its marker lists."""
    marked = read_marker(path) if path.is_dir() else None
    if not path.is_dir():
        path.unlink(missing_ok=True)
    elif marked is not None and marked.kind != UNFINISHED and ".old-" in path.name:
        remove_marked(path)
    else:
        import shutil

        shutil.rmtree(path, ignore_errors=True)


def _lives(pid: int) -> bool:
    """Whether another process with this pid exists; our own pid in a name belonged to an earlier process."""
    if pid == os.getpid():
        return False
    if os.name == "nt":  # os.kill would kill the process
        return True
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    except OverflowError:
        return False
    return True
