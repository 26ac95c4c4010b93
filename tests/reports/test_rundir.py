"""A run on disk appears whole or not at all, and the same input gives the same bytes."""

import errno
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from support.fake_run import fake_run

from kvsim.reports import figures
from kvsim.reports.rundir import whole, writing
from kvsim.reports.rundir.claims import claimed
from kvsim.reports.rundir.run import read_run
from kvsim.reports.rundir.writing import write_run
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.marker import MARKER, UNFINISHED, mark
from kvsim.sim.options.outputs import Pictures


def files_of(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_a_run_reads_back_as_it_was_written(tmp_path):
    run = fake_run(requests=20, rejected=3)
    written = write_run(tmp_path / "out", **run)
    read = read_run(tmp_path / "out")
    assert (read.label, read.config, read.summary) == (written.label, written.config, written.summary)
    tables = read.columns
    for columns, original in ((tables.requests, run["requests"]), (tables.timeline, run["timeline"])):
        assert list(columns) == list(original)
        for name, column in original.items():
            np.testing.assert_array_equal(columns[name], column)


def test_an_empty_run_reads_back(tmp_path):
    write_run(tmp_path / "out", **fake_run(requests=0))
    assert read_run(tmp_path / "out").columns.requests["status"].size == 0


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes(tmp_path):
    steps = {"step": np.arange(5), "start_s": np.linspace(0, 1, 5)}
    for name in ("first", "second"):
        write_run(tmp_path / name, **fake_run(), steps=steps, pictures=Pictures())
    first, second = files_of(tmp_path / "first"), files_of(tmp_path / "second")
    assert set(first) == {
        *("config.json", "summary.json", "requests.parquet", "timeline.parquet", "steps.parquet"),
        *("memory.png", "waste.png", "requests.png", "latency.png", MARKER),
    }
    assert first == second


def test_json_has_null_for_what_is_no_number(tmp_path):
    run = fake_run()
    run["summary"]["throughput"] = {"a": float("nan"), "b": np.float64("inf"), "c": np.int64(3)}
    write_run(tmp_path / "out", **run)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["throughput"] == {"a": None, "b": None, "c": 3}


def test_whole_numbers_take_32_bits_unless_they_need_64(tmp_path):
    run = fake_run()
    run["requests"]["prompt_tokens"][0] = 2**40
    write_run(tmp_path / "out", **run)
    requests = read_run(tmp_path / "out").columns.requests
    assert (requests["output_tokens"].dtype, requests["prompt_tokens"].dtype) == (np.int32, np.int64)


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), RuntimeError("a bug")])
@pytest.mark.parametrize(
    ("module", "writer"), [(writing, "write_json"), (writing, "write_columns"), (figures, "draw")]
)
def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch, module, writer, failure):
    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(module, writer, fail)
    with pytest.raises(type(failure)):
        write_run(tmp_path / "new" / "parents" / "out", **fake_run(), pictures=Pictures())
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing, "write_columns", fail)
    with pytest.raises(KvsimError, match="the disk is full"):
        write_run(tmp_path / "out", **fake_run(), pictures=Pictures())
    assert list(tmp_path.iterdir()) == []


def test_an_existing_run_needs_force(tmp_path):
    out = tmp_path / "out"
    write_run(out, **fake_run(seed=1))
    before = files_of(out)
    with pytest.raises(KvsimError, match=r"out exists; pass --force to replace it$"):
        write_run(out, **fake_run(seed=2))
    assert files_of(out) == before
    write_run(out, **fake_run(seed=2), force=True)
    assert read_run(out).config["workload"]["seed"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("failing_rename", [1, 2])
def test_a_replacement_that_fails_leaves_the_old_run(tmp_path, monkeypatch, failing_rename):
    out = tmp_path / "out"
    write_run(out, **fake_run(seed=1))
    before, real, calls = files_of(out), whole.Path.rename, []

    def rename(self, target):
        calls.append(target)
        if len(calls) == failing_rename:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(whole.Path, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        write_run(out, **fake_run(seed=2), force=True)
    assert files_of(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def taken(path, force=False):
    """Check whether a directory may be written."""
    with claimed(path, force):
        pass


def test_force_takes_an_empty_directory(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(KvsimError, match="--force"):
        taken(tmp_path / "out")
    write_run(tmp_path / "out", **fake_run(), force=True)
    assert read_run(tmp_path / "out").label == "paged"


def test_force_never_takes_what_is_not_a_run(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    for force in (False, True):
        with pytest.raises(KvsimError, match="exists and is not a kvsim run"):
            write_run(tmp_path / "thesis", **fake_run(), force=force)
    (tmp_path / "file").write_text("")
    with pytest.raises(KvsimError, match="is not a directory"):
        taken(tmp_path / "file", force=True)
    with pytest.raises(KvsimError, match=r"file is not a directory"):
        taken(tmp_path / "file" / "out")


def test_what_appears_during_the_run_is_not_overwritten(tmp_path, monkeypatch):
    out = tmp_path / "out"

    def meanwhile(*_, **__):
        if not out.exists():
            out.mkdir()
            (out / "theirs").write_text("")

    monkeypatch.setattr(figures, "draw", meanwhile)
    with pytest.raises(KvsimError, match="not a kvsim run"):
        write_run(out, **fake_run(), pictures=Pictures())
    assert [path.name for path in out.iterdir()] == ["theirs"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_check_writes_nothing(tmp_path):
    taken(tmp_path / "new" / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_parent_without_permission_is_named(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # a mode would not stop root
    with pytest.raises(KvsimError, match="no permission to write there"):
        taken(tmp_path / "out")


def test_remains_of_a_killed_process_are_cleared(tmp_path):
    remains = tmp_path / f".out.partial-{os.getpid()}"  # it had our number
    remains.mkdir()
    mark(remains, UNFINISHED)
    (remains / "junk").write_text("")
    write_run(tmp_path / "out", **fake_run())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "junk" not in files_of(tmp_path / "out")


def changed(path, change):
    """A JSON file, its value changed in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def without_numbers(path, name):
    """A table with nothing known in one column."""
    table = parquet.read_table(path)
    nothing = pa.nulls(table.num_rows, pa.float64())
    parquet.write_table(table.set_column(table.column_names.index(name), name, nothing), path)


DAMAGES = {
    "config.json is damaged: it lacks workload": lambda out: changed(
        out / "config.json", lambda config: config.pop("workload")
    ),
    "config.json is damaged: it lacks gpu": lambda out: changed(
        out / "config.json", lambda config: config["scenario"].pop("gpu")
    ),
    "config.json is damaged: model must have a name": lambda out: changed(
        out / "config.json", lambda config: config["scenario"]["model"].pop("name")
    ),
    "requests.parquet is damaged: column prompt_tokens must have no nulls": lambda out: without_numbers(
        out / "requests.parquet", "prompt_tokens"
    ),
    "column token must have no nulls": lambda out: without_numbers(out / "timeline.parquet", "token"),
    "is not a kvsim run: summary.json is missing": lambda out: (out / "summary.json").unlink(),
    "is not a directory": shutil.rmtree,
    "summary.json is not valid JSON": lambda out: (out / "summary.json").write_text('{"label": '),
    "must hold a JSON object, got list": lambda out: (out / "config.json").write_text("[]"),
    "it lacks label, requests": lambda out: (out / "summary.json").write_text("{}"),
    "requests.parquet is damaged": lambda out: (out / "requests.parquet").write_bytes(b"PAR1"),
    "timeline.parquet is damaged: it lacks the columns time_s": lambda out: shutil.copy(
        out / "requests.parquet", out / "timeline.parquet"
    ),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_damaged_run_says_what_is_wrong(tmp_path, message):
    out = tmp_path / "out"
    write_run(out, **fake_run())
    DAMAGES[message](out)
    with pytest.raises(KvsimError, match=message):
        read_run(out)
