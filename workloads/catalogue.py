"""Public traces by name: where each is from, fetched once into the platform's cache.

    sim traces fetch azure2023-conv    download, check where a checksum is known, keep
    --trace azure2023-conv             the kept file; without one an error says how to get it

A file put there by hand, under its own name, is as good. Nothing is downloaded unless it is asked for.
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
    """A public trace; what is not known of it is None."""

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
        """Whether it is kept."""
        return self.path.is_file()


@cache
def entries() -> dict[str, Entry]:
    """All by name, in the order of the list."""
    text = resources.files("kvsim.workloads.data").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return {name: Entry(name, **found) for name, found in tomllib.loads(text).items()}


def directory() -> Path:
    """Where this platform keeps what can be fetched again."""
    import pooch  # type: ignore[import-untyped]

    return Path(pooch.os_cache("kvsim")) / "traces"


def kept(name: str) -> str:
    """The file of a trace that was fetched.

    Raises
    ------
    KvsimError
        None was; it says what to do.
    """
    entry = entries()[name]
    if not entry.here:
        raise KvsimError(f"trace {name} is not here yet: sim traces fetch {name}, or {_by_hand(entry)}")
    return str(entry.path)


@dataclass
class Bytes:
    """How far a download is, in the words of those who report it (tqdm's)."""

    total: int = 0
    done: int = 0

    def update(self, more: int) -> None:
        """So many bytes came."""
        self.done += more

    def reset(self) -> None:
        """The download begins, or says that it is whole."""
        self.done = 0

    def close(self) -> None:
        """Nothing is to be closed."""


def fetch(name: str, arrived: Bytes | None = None) -> tuple[Entry, str]:
    """The entry, its file now here, and the file's SHA-256; only what is not here is downloaded.

    Raises
    ------
    KvsimError
        An unknown name, no way to the file, or a file with another checksum.
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
        except (OSError, ValueError) as error:  # requests' own are OSErrors, a wrong checksum is a ValueError
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
    """Put what a file holds that is compressed in the file's place."""
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
    """Changes when the file does."""
    found = os.stat(path)
    return f"{found.st_size}-{found.st_mtime_ns}"
