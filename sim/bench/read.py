"""A benchmark tool's result, recognized by its content, whatever its name.

    an object with completed, request_throughput      vllm bench serve, a run per line with --append-result
    lines with metadata and metrics                   AIPerf, each request
    an object with request_count, request_latency     AIPerf, the numbers
    an object with benchmarks                         GuideLLM
    an object with load_summary, successes            inference-perf, the numbers
    a list with start_time, end_time, info            inference-perf, each request

Of a truncated file the complete part is used, with a note. Any file may be in gzip format. In a folder, the
most informative file is read, by the names that tools use.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvsim.sim.bench import aiperf, guidellm, inference_perf, vllm
from kvsim.sim.bench.fields import shown
from kvsim.sim.bench.measured import MeasuredRun, finished_run
from kvsim.sim.bench.names import AIPERF_SUMMARY, IN_FOLDERS, in_folder
from kvsim.sim.bench.placed import placed
from kvsim.sim.bench.whole import Whole, objects_of, read_whole, text_of
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import understood

TOOLS = "vllm bench serve, AIPerf, GuideLLM or inference-perf"
MOST_PLACED = 50_000_000
"""Files up to this many characters are read again to find the line of an error."""


def read_result(path: Path, run: int | None = None) -> MeasuredRun:
    """The run in a file.

    Parameters
    ----------
    run : int or None
        Which run of a file with several, counted from 1; None: the last.

    Raises
    ------
    KvsimError
        The file cannot be read, is not from one of these tools, or holds no answered request.
    """
    path = _file_in(path.expanduser())
    with understood(f"result {path}", "cannot be used"):
        if _is_lines(path):
            return _named(path, finished_run(path, _lines(path, run)))
        whole = read_whole(path)
        try:
            return _named(path, finished_run(path, _value(path, whole, run)))
        except KvsimError as error:
            cut = "" if whole.cut_line is None else f"; the file is cut in line {whole.cut_line:,}"
            raise KvsimError(f"{_with_line(path, whole, run, error)}{cut}") from error


def _file_in(path: Path) -> Path:
    if not path.is_dir():
        return path
    found = in_folder(path)
    if found is None:
        raise KvsimError(f"result {path} is a folder, which must hold {' or '.join(IN_FOLDERS)}, got none")
    return found


def _named(path: Path, run: MeasuredRun) -> MeasuredRun:
    """The run, named after its file, or after its folder if the tool's file names never change."""
    plain = path.name.removesuffix(".gz")
    folder = path.resolve().parent.name
    return replace(run, name=folder if plain in IN_FOLDERS and folder else Path(plain).stem)


def _with_line(path: Path, whole: Whole, run: int | None, error: KvsimError) -> KvsimError:
    """The same error, with the line of the value in question."""
    if len(whole.text) <= MOST_PLACED:
        try:
            _value(path, whole._replace(value=placed(whole.text)), run)
        except KvsimError as said:
            return said
    return error


def _is_lines(path: Path) -> bool:
    """Whether a file holds one object per line, and more than one."""
    first, _, rest = text_of(path).lstrip().partition("\n")
    if not rest.strip() or not first.startswith("{"):
        return False
    try:
        json.loads(first)
    except (json.JSONDecodeError, RecursionError):
        return False
    return True


def _lines(path: Path, run: int | None) -> MeasuredRun:
    found = list(objects_of(path))
    notes: list[str] = []
    if found[-1][1] is None:
        line, _ = found.pop()
        notes.append(f"The file is cut in line {line:,}: the {len(found):,} lines before it are read.")
    objects = [(line, record) for line, record in found if record is not None]
    first = objects[0][1] if objects else {}
    if aiperf.is_record(first):
        _only_one(path, run, 1)
        read = aiperf.aiperf_run(path, objects, notes)
        packed = (path.with_name(f"{AIPERF_SUMMARY}{ending}") for ending in ("", ".gz"))
        beside = next((each for each in packed if each.is_file()), None)
        if beside is None:
            return read
        summary = read_whole(beside).value
        if not isinstance(summary, dict) or not aiperf.is_summary(summary):
            return read
        return aiperf.with_summary(read, aiperf.aiperf_summary(beside, summary, []))
    if vllm.is_vllm(first):
        chosen = len(objects) if run is None else run
        _only_one(path, run, len(objects))
        if run is None and len(objects) > 1:
            notes.append(f"The last of {len(objects)} runs; another: --run N.")
        line, record = objects[chosen - 1]
        return vllm.vllm_run(path.stem, f"result {path}, line {line}", record, notes)
    raise _unknown(path, f"lines with {shown(sorted(first))}")


def _value(path: Path, whole: Whole, run: int | None) -> MeasuredRun:
    value, notes = whole.value, []
    if whole.cut_line is not None:
        notes.append(f"The file is cut in line {whole.cut_line:,}: what is whole before it is read.")
    if inference_perf.is_requests(_without_cut(value, whole)):
        _only_one(path, run, 1)
        return inference_perf.inference_perf_run(path, _without_cut(value, whole), notes)
    if not isinstance(value, dict):
        raise _unknown(path, type(value).__name__)
    if guidellm.is_guidellm(value):
        return guidellm.guidellm_run(path, value, run, notes)
    _only_one(path, run, 1)
    if inference_perf.is_summary(value):
        return inference_perf.inference_perf_summary(path, value, notes)
    if vllm.is_vllm(value):
        return vllm.vllm_run(path.stem, f"result {path}", value, notes)
    if aiperf.is_record(value):
        return aiperf.aiperf_run(path, [(1, value)], notes)
    if aiperf.is_summary(value):
        return aiperf.aiperf_summary(path, value, notes)
    raise _unknown(path, f"an object with {shown(sorted(value))}")


def _without_cut(value: Any, whole: Whole) -> Any:  # noqa: ANN401 - any value of JSON
    """A list, without its last object if that was truncated."""
    if whole.cut_line is None or not isinstance(value, list):
        return value
    return [
        each for each in value if isinstance(each, dict) and {"start_time", "end_time", "info"} <= each.keys()
    ]


def _only_one(path: Path, run: int | None, there: int) -> None:
    if run is not None and not 1 <= run <= there:
        raise KvsimError(f"run must be from 1 to {there}, the runs in {path}, got {run}")


def _unknown(path: Path, found: str) -> KvsimError:
    return KvsimError(f"result {path}: must be of {TOOLS}, got {found}")
