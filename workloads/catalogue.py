"""Public traces by name, with their sources; each is downloaded once into the platform's cache.

    sim traces fetch azure2023-conv    download, check if a checksum is known, keep
    --trace azure2023-conv             the kept file; if missing, an error says how to get it

A file copied there under its own name works too. Nothing is downloaded unless requested.
"""

import gzip
import hashlib
import os
import shutil
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from kvsim.sim.errors import KvsimError, unknown

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A public trace; unknown fields are None."""

    name: str
    about: str
    url: str
    source: str
    licence: str
    format: str
    sha256: str | None = None
    rows: int | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    span_s: float | None = None
    requests_per_s: float | None = None
    burstiness: float | None = None

    @property
    def path(self) -> Path:
        """Where its file is kept, or would be."""
        return directory() / self.url.rpartition("/")[2].removesuffix(".gz")

    @property
    def here(self) -> bool:
        """Whether its file is there."""
        return self.path.is_file()


@cache
def entries() -> dict[str, Entry]:
    """All entries by name, in table order."""
    text = resources.files("kvsim.workloads.data").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return {name: Entry(name, **found) for name, found in tomllib.loads(text).items()}


def directory() -> Path:
    """This platform's directory for files that can be downloaded again."""
    import pooch  # type: ignore[import-untyped]

    return Path(pooch.os_cache("kvsim")) / "traces"


def kept(name: str) -> str:
    """The file of a fetched trace.

    Raises
    ------
    KvsimError
        The trace was not fetched; the error says what to do.
    """
    entry = entries()[name]
    if not entry.here:
        raise KvsimError(f"trace {name} is not here yet: sim traces fetch {name}, or {_by_hand(entry)}")
    return str(entry.path)


@dataclass
class Bytes:
    """Counts downloaded bytes, with the interface of tqdm."""

    total: int = 0
    done: int = 0

    def update(self, more: int) -> None:
        """Count `more` bytes."""
        self.done += more

    def reset(self) -> None:
        """Called when the download starts and when it is complete."""
        self.done = 0

    def close(self) -> None:
        """Called at the end; does nothing."""


def fetch(name: str, arrived: Bytes | None = None) -> tuple[Entry, str]:
    """Fetch a file unless it is here; returns the entry and the file's SHA-256.

    Raises
    ------
    KvsimError
        An unknown name, an unreachable file, or a file with another checksum.
    """
    import pooch

    if name not in entries():
        raise unknown("trace", name, list(entries()))
    entry = entries()[name]
    if not entry.here:
        pooch.get_logger().setLevel("ERROR")
        bar: Any = arrived or Bytes()
        downloader = pooch.HTTPDownloader(progressbar=bar, timeout=30, chunk_size=CHUNK_BYTES)
        try:
            pooch.retrieve(
                entry.url,
                known_hash=entry.sha256 and f"sha256:{entry.sha256}",
                fname=entry.path.name,
                path=entry.path.parent,
                downloader=downloader,
            )
            if entry.url.endswith(".gz"):
                _unpack(entry.path)
        except (OSError, ValueError) as error:  # requests raises OSErrors; a wrong checksum is a ValueError
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise KvsimError(f"trace {name} cannot be fetched ({why[:160]}): {_by_hand(entry)}") from error
    found = _sha256(entry.path)
    if entry.sha256 not in (None, found):
        must = f"the SHA-256 {entry.sha256}"
        raise KvsimError(
            f"trace {name}: {entry.path} must have {must}, got {found}: remove it, fetch it again"
        )
    return entry, found


def _unpack(path: Path) -> None:
    """Decompress a file in place."""
    part = path.with_name(f"{path.name}.part")
    with gzip.open(path) as packed, open(part, "wb") as plain:
        shutil.copyfileobj(packed, plain)
    part.replace(path)


def _by_hand(entry: Entry) -> str:
    return f"download {entry.url} by hand and put it at {entry.path}"


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_key(path: Path) -> str:
    """A key that changes when the file does."""
    found = os.stat(path)
    return f"{found.st_size}-{found.st_mtime_ns}"
