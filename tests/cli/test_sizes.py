"""Refused before anything is made: what is no regular file, what is too large, and counts nobody can mean."""

import gzip
import os

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from support.attack import limited

from kvsim import cli
from kvsim.sim.files import reading, tables
from kvsim.workloads.lines import LARGEST_TRACE_BYTES

pytestmark = pytest.mark.slow

SERVER = "--model opt-13b --gpu a100-40gb"
READERS = {
    "sweep": "sweep {}",
    "capacity": "capacity {} --slo ttft:p99=1s",
    "config": "run --config {}",
    "trace": "run --trace {}",
    "show": "traces show {}",
    "convert": "traces convert {} out.jsonl",
    "model": "fit {}",
    "gpu": "run --gpu {}",
    "profile": "calibrate show {} --no-plots",
    "log": "fit opt-13b --log {}",
    "replay": f"replay {{}} {SERVER}",
    "validate": f"validate {{}} {SERVER}",
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused(command, capsys):
    """The line of a command that says no, soon."""
    with limited():
        assert cli.main(command.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize("reader", READERS)
def test_a_device_a_pipe_and_what_the_kernel_makes_up_are_no_input(reader, capsys):
    os.mkfifo("pipe.json")
    os.symlink("/dev/zero", "zero.json")
    found = {"pipe.json": "a device or a pipe", "zero.json": "a device or a pipe"}
    if os.path.ismount("/proc"):
        os.symlink("/proc/kmsg", "kmsg.json")  # a reader waits for ever
        found["kmsg.json"] = "one that the kernel makes up"
    for name, got in found.items():
        assert f"must be a regular file, got {got}" in refused(READERS[reader].format(name), capsys)


SWEPT = (
    "sweep --num-prompts 3 --cost constant:0.03 --request-rate 2,4 --jobs 1 --quiet --no-plots --out swept"
)
INSIDE = {
    "prices.toml": "run --num-prompts 3 --gpu-price prices.toml",
    "errors.csv": "validate points --table errors.csv",
    "clients/c-trace.csv": "run --trace clients",
    "sessions/one.json": "traces show sessions",
    "swept/table.parquet": "table swept",
}


@pytest.mark.parametrize("file", INSIDE)
def test_nor_is_one_that_a_directory_or_another_option_holds(file, capsys):
    assert cli.main(SWEPT.split()) == 0
    capsys.readouterr()
    os.makedirs(os.path.dirname(file) or ".", exist_ok=True)
    if os.path.exists(file):
        os.unlink(file)
    os.symlink("/dev/zero", file)
    said = {"errors.csv": "it is a link to /dev/zero", "swept/table.parquet": "that is not done"}
    assert said.get(file, "got a device or a pipe") in refused(INSIDE[file], capsys)


@pytest.mark.parametrize("reader", ["trace", "show", "convert"])
def test_a_trace_and_each_of_its_lines_have_a_largest_size(reader, capsys):
    with open("large.json", "wb") as file:
        file.truncate(LARGEST_TRACE_BYTES + 1)
    assert "must have at most 16 GiB" in refused(READERS[reader].format("large.json"), capsys)
    for name, head in (
        ("row", b'{"prompt_tokens": 5, "output_tokens": 4}\n'),
        ("cell", b"isl,osl\n3,4\n"),
        ("name", b"a,b"),
    ):
        with open(name, "wb") as file:
            file.write(head)
            file.truncate(4 << 30)
        said = refused(READERS[reader].format(name), capsys)
        assert "a line must have at most 16,777,216 characters" in said


WHOLE = [reader for reader in READERS if reader not in ("trace", "show", "convert")]


@pytest.mark.parametrize("reader", WHOLE)
def test_a_file_that_is_read_as_a_whole_has_a_largest_size(reader, capsys):
    with open("large.json", "wb") as file:
        file.truncate(reading.LARGEST_BYTES + 1)
    said = f"must have at most {reading.LARGEST_BYTES >> 20} MiB"
    assert said in refused(READERS[reader].format("large.json"), capsys)


@pytest.mark.parametrize("reader", ["log", "replay"])
def test_what_is_packed_counts_unpacked(reader, capsys, monkeypatch):
    monkeypatch.setattr(reading, "LARGEST_BYTES", 1 << 20)
    with gzip.open("bomb.json", "wb") as file:
        file.write(bytes(5 << 20))
    assert "must have at most 1 MiB, unpacked" in refused(READERS[reader].format("bomb.json"), capsys)


def test_a_table_has_a_most_of_rows(capsys, monkeypatch):
    monkeypatch.setattr(tables, "MOST_ROWS", 1000)
    column = pa.array(np.ones(1001, np.int64))
    parquet.write_table(pa.table({"prompt_tokens": column, "output_tokens": column}), "long.parquet")
    assert "must have at most 1,000 rows, got 1,001" in refused("run --trace long.parquet", capsys)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("run --num-prompts 1000000000", "num_prompts must be at most 20,000,000"),
        ("compare --num-prompts 1000000000", "num_prompts must be at most 20,000,000"),
        ("run --seeds 1000000000", "seeds must be at most 10,000"),
        ("compare --seeds 1000000000", "seeds must be at most 10,000"),
        (
            "check-allocator paged --calls 999999999999",
            "calls must be from 1 to 1,000,000, got 999,999,999,999",
        ),
        ("check-scheduler orca --workloads 0", "workloads must be from 1 to 1,000,000, got 0"),
        ("check-eviction lru --requests 999999999999", "requests must be from 1 to 1,000,000"),
        ("sweep --seeds 1000000000", "a sweep must have at most 1,000,000 runs"),
        ("capacity --seeds 1000000000 --slo ttft:p99=1s", "a sweep must have at most 1,000,000 runs"),
    ],
)
def test_counts_are_checked_before_anything_is_made(command, says, capsys):
    assert says in refused(command, capsys)
