"""A run on disk: a directory of JSON, parquet and PNG files that appears whole or not at all.

    out/config.json        everything needed to repeat the run
        summary.json       the numbers of the report
        requests.parquet   a row per request
        timeline.parquet   the ledger and the queues over time
        steps.parquet      a row per engine step, where it was asked for
        samples.parquet    a row per answer, where requests have several
        events.parquet     what happens to each request, and why, where it was asked for
        map.parquet        what lies where in the arena, at some instants, where it was asked for
        *.png              the figures

A comparison is a directory of such directories, beside a `summary.json` that lists their summaries in
order, a `config.json` and the figures of all runs side by side. Several seeds are a directory of runs, or
of comparisons, see reports/seeds/runs.py.

The files are written into the hidden sibling `.out.partial-<pid>`, which is then renamed. The same
input gives the same bytes: nothing in the files tells when or where they were written.
"""

import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.errors import KvsimError
from sim.events import Texts

Columns = dict[str, npt.NDArray[Any]]
Table = Mapping[str, npt.NDArray[Any] | Texts]

_SECTIONS = ("label", "requests", "throughput", "latency", "memory", "engine")
_REQUEST_COLUMNS = ("request", "arrival_s", "status", "ttft_s", "tpot_s", "e2e_s", "normalized_s_per_token")
_TIMELINE_COLUMNS = (
    *("time_s", "token", "reserved", "internal", "cached", "external", "free"),
    *("running", "waiting"),
)


@dataclass(frozen=True)
class Run:
    """The result of one run as the reports see it.

    `config` and `summary` are plain JSON values (null where there is no number). `requests` and
    `timeline` are numpy columns; a row of the timeline holds until the next.
    """

    path: Path
    label: str
    config: dict[str, Any]
    summary: dict[str, Any]
    requests: Columns
    timeline: Columns


def check_target(directory: Path, force: bool = False) -> None:
    """Raise KvsimError now if `write_run` could not write there: call it before a long simulation."""
    target = _real(directory)
    with _explained(directory):
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


def write_run(
    directory: Path,
    *,
    config: Mapping[str, Any],
    summary: Mapping[str, Any],
    requests: Columns,
    timeline: Columns,
    steps: Columns | None = None,
    samples: Columns | None = None,
    events: Table | None = None,
    map: Table | None = None,
    draw: bool = True,
    force: bool = False,
) -> Run:
    """Write one run, whole or not at all, and return it as `read_run` would.

    With `force` it takes the place of an earlier run or of an empty directory, never of anything else.
    """
    run = _run(directory, config, summary, requests, timeline)
    with whole_directory(directory, force) as part:
        _fill(part, run, {"steps": steps, "samples": samples, "events": events, "map": map})
        if draw:
            _draw([run], part)
    return run


def write_comparison(
    directory: Path,
    runs: Sequence[Mapping[str, Any]],
    *,
    config: Mapping[str, Any],
    draw: bool = True,
    force: bool = False,
) -> list[Run]:
    """Write several runs, each as the arguments of `write_run`, and what they share: all or nothing."""
    written = []
    with whole_directory(directory, force) as part:
        for parts in runs:
            columns = dict(parts)
            extra = {name: columns.pop(name, None) for name in ("steps", "samples", "events", "map")}
            label = str(parts["summary"]["label"])
            written.append(_run(directory / label, **columns))
            (part / label).mkdir()
            _fill(part / label, written[-1], extra)
        _write_json(_plain(config), part / "config.json")
        _write_json([run.summary for run in written], part / "summary.json")
        if draw:
            _draw(written, part)
    return written


def _run(
    path: Path, config: Mapping[str, Any], summary: Mapping[str, Any], requests: Columns, timeline: Columns
) -> Run:
    return Run(path, str(summary["label"]), _plain(config), _plain(summary), requests, timeline)


def _fill(part: Path, run: Run, extra: Mapping[str, Table | None]) -> None:
    """Write the files of one run, all but the figures."""
    _write_json(run.config, part / "config.json")
    _write_json(run.summary, part / "summary.json")
    _write_columns(run.requests, part / "requests.parquet")
    _write_columns(run.timeline, part / "timeline.parquet")
    for name, columns in extra.items():
        if columns is not None:
            _write_columns(columns, part / f"{name}.parquet")


def _draw(runs: Sequence[Run], part: Path) -> None:
    from reports import figures  # late: it imports matplotlib

    figures.draw(runs, part)


def read_run(directory: Path) -> Run:
    """Read back what `write_run` wrote; KvsimError if it is no run or a damaged one."""
    if not directory.is_dir():
        raise KvsimError(f"{directory} is not a directory")
    for name in ("config.json", "summary.json", "requests.parquet", "timeline.parquet"):
        if not (directory / name).is_file():
            raise KvsimError(f"{directory} is not a kvsim run: {name} is missing")
    summary = _read_json(directory / "summary.json")
    lacking = [section for section in _SECTIONS if section not in summary]
    if lacking:
        raise KvsimError(f"{directory / 'summary.json'} is damaged: it lacks {', '.join(lacking)}")
    return Run(
        path=directory,
        label=str(summary["label"]),
        config=_read_json(directory / "config.json"),
        summary=summary,
        requests=_read_columns(directory / "requests.parquet", _REQUEST_COLUMNS),
        timeline=_read_columns(directory / "timeline.parquet", _TIMELINE_COLUMNS),
    )


def read_runs(directory: Path) -> list[Run]:
    """The run in a directory, or all runs of a comparison, or of several seeds, in their order."""
    table = directory / "summary.json"
    if not table.is_file() or (directory / "requests.parquet").exists():
        return [read_run(directory)]
    summaries = _load_json(table)
    if isinstance(summaries, dict) and isinstance(summaries.get("seeds"), list):
        by_seed = [_read_seed(directory, seed) for seed in summaries["seeds"]]
        return [run for seeds in zip(*by_seed, strict=True) for run in seeds]
    if not isinstance(summaries, list):
        return [read_run(directory)]
    return [read_run(directory / str(summary["label"])) for summary in summaries]


def seed_name(seed: int) -> str:
    """The directory of one of several seeds."""
    return f"seed-{seed}"


def _read_seed(directory: Path, seed: int) -> list[Run]:
    """The runs of one of several seeds, which their labels name."""
    return [replace(run, label=f"{run.label}, seed {seed}") for run in read_runs(directory / seed_name(seed))]


def write_together(part: Path, config: Mapping[str, Any], summary: Mapping[str, Any]) -> None:
    """Write what several seeds have in common beside their directories; `config` gets that of each."""
    names = [seed_name(seed) for seed in config["seeds"]]
    configs = {name: _read_json(part / name / "config.json") for name in names}
    _write_json(_plain({**config, "runs": configs}), part / "config.json")
    _write_json(_plain(summary), part / "summary.json")


def write_figures(directory: Path, draw: Callable[[Path], object]) -> list[Path]:
    """Let `draw` fill a directory, new or not; files of the same names are replaced, all or none."""
    target = _real(directory)
    if not target.is_dir():
        with whole_directory(directory) as part:
            draw(part)
        return sorted(directory.iterdir())
    with _explained(directory), TemporaryDirectory(prefix=".figures-", dir=target) as part_name:
        part = Path(part_name)
        draw(part)
        return [path.replace(directory / path.name) for path in sorted(part.iterdir())]


@contextmanager
def whole_directory(directory: Path, force: bool = False) -> Iterator[Path]:
    """Give a fresh hidden directory to fill; it becomes `directory` if the block ends well.

    After any exception, an interrupt too, nothing is left: not the files, not the parents made for
    them; what stood at `directory` still stands there.
    """
    check_target(directory, force)
    target = _real(directory)
    part = _beside(target, "partial")
    with _explained(directory):
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


def _real(directory: Path) -> Path:
    """Where the directory lies once links are followed: a rename must not replace the link."""
    return Path(os.path.realpath(directory))


def _beside(target: Path, role: str) -> Path:
    return target.with_name(f".{target.name}.{role}-{os.getpid()}")


@contextmanager
def _explained(directory: Path) -> Iterator[None]:
    """Turn what the file system refuses into one plain sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise KvsimError(f"cannot write {directory}: the disk is full; nothing was kept") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise KvsimError(f"cannot write {directory}: no permission to write there") from error
        raise KvsimError(f"cannot write {directory}: {error.strerror or error}") from error


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON is any value
    """The value in JSON's own types: numpy scalars and arrays unpacked, NaN and infinity as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _write_json(value: object, path: Path) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _load_json(path: Path) -> Any:  # noqa: ANN401 - JSON is any value
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise KvsimError(f"{path} is damaged: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    value = _load_json(path)
    if not isinstance(value, dict):
        raise KvsimError(f"{path} is damaged: it must hold an object, got {type(value).__name__}")
    return value


def _write_columns(columns: Table, path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    arrays = [
        pa.DictionaryArray.from_arrays(_array(column.codes), _array(np.array(column.texts, dtype=object)))
        if isinstance(column, Texts)
        else _array(np.asarray(column))
        for column in columns.values()
    ]
    parquet.write_table(pa.Table.from_arrays(arrays, names=list(columns)), path, compression="zstd")


def _array(column: npt.NDArray[Any]) -> Any:  # noqa: ANN401 - a pyarrow Array
    """The column for parquet: whole numbers in 32 bits where they fit, NaN as null.

    Built from its buffers because `pyarrow.array` imports pandas wherever it is installed, for 0.3 s.
    """
    import pyarrow as pa

    if column.dtype.kind in "OU":
        texts = [str(text).encode() for text in column.tolist()]
        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
        return pa.Array.from_buffers(pa.string(), len(texts), buffers)
    known = None
    if column.dtype.kind == "f":
        values, kind = column.astype(np.float64), pa.float64()
        known = pa.py_buffer(np.packbits(~np.isnan(values), bitorder="little"))
    elif not column.size or (column.min() >= -(2**31) and column.max() < 2**31):
        values, kind = column.astype(np.int32), pa.int32()
    else:
        values, kind = column.astype(np.int64), pa.int64()
    return pa.Array.from_buffers(kind, len(values), [known, pa.py_buffer(np.ascontiguousarray(values))])


def _read_columns(path: Path, needed: tuple[str, ...]) -> Columns:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(path).read(use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise KvsimError(f"{path} is damaged: {error}") from error
    lacking = [name for name in needed if name not in table.column_names]
    if lacking:
        raise KvsimError(f"{path} is damaged: it lacks the columns {', '.join(lacking)}")
    columns = {name: table[name].to_numpy() for name in table.column_names}
    return {
        name: column.astype(str) if column.dtype == object else column for name, column in columns.items()
    }
