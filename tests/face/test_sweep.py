"""`sim sweep`, `sim table` and `kvsim.sweep`: every run once, whatever happens, into one table."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

import kvsim
from kvsim.allocators.contiguous import Contiguous
from kvsim.cli import main
from kvsim.commands.sweep_runs import prepared
from kvsim.reports.rundir.formats import plain
from kvsim.sim.options.goals import NO_GOALS

pytestmark = pytest.mark.slow

SMALL = ["--num-prompts", "40", "--jobs", "1", "--no-plots"]


def swept(tmp_path, *flags, name="out"):
    """The exit code of a sweep into a directory."""
    return main(["sweep", *SMALL, *flags, "--out", str(tmp_path / name)])


def keys(directory):
    """The keys of the runs that are done, in their order."""
    return [json.loads(line)["key"] for line in (directory / "runs.jsonl").read_text().splitlines()]


LLAMA = {"model": "llama-3.1-8b", "gpu": "h100"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {**LLAMA, "pool": "prefill:1 decode:3"},
        {**LLAMA, "kv_offloading_size": "8GiB", "max_num_seqs": 4},
        {**LLAMA, "speculative_method": "eagle3", "num_speculative_tokens": 3, "acceptance_length": 2.4},
        {"scheduler": "sglang", "allocator": "sglang", "enable_hierarchical_cache": True},
        {"allocator": "vattention", "policy": "mlfq"},
        {"model": "gemma-3-27b", "gpu": "h100"},
        {"replicas": 2, "fail": "replica=0:at=5:for=5"},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())) or "usual",
)
def test_a_run_of_a_sweep_keeps_hardly_any_timeline_and_differs_in_nothing_else(settings):
    settings = {"num_prompts": 60, "request_rate": 4.0, **settings}
    found, whole = prepared(settings, 0, NO_GOALS).outcome(), kvsim.simulate(**settings)
    replicas = len(set(found.timeline.get("replica", [0])))
    assert len(found.timeline["time_s"]) < 4 * replicas < len(whole.timeline) / 20
    assert plain(found.summary | {"simulation": {}}) == {**whole.summary, "simulation": {}}
    pd.testing.assert_frame_equal(pd.DataFrame(found.requests), whole.requests, check_dtype=False)


def test_a_row_has_every_setting_that_varies_and_every_number(tmp_path, capsys):
    assert swept(tmp_path, "--request-rate", "2,4", "--allocator", "paged,contiguous", "--seeds", "2") == 0
    table = pd.read_parquet(tmp_path / "out/table.parquet")
    assert list(table.columns[:6]) == ["request_rate", "allocator", "seed", "status", "reason", "gpus"]
    assert len(table) == 8 and set(table.status) == {"finished"}
    one = kvsim.simulate(num_prompts=40, request_rate=4.0, allocator="contiguous", seed=1, shuffle=True)
    (row,) = table[(table.request_rate == 4) & (table.allocator == "contiguous") & (table.seed == 1)].to_dict(
        "records"
    )
    for name, value in one.summary.flat().items():
        if isinstance(value, int | float) and not name.startswith("simulation"):
            assert row[name if name in row else f"{name}_percent"] == value
    assert pd.read_csv(tmp_path / "out/table.csv").shape == table.shape
    assert "paged has the highest mean" in " ".join(capsys.readouterr().out.split())


def test_python_gives_the_same_table(tmp_path):
    assert swept(tmp_path, "--request-rate", "2:4:2", "--enable-prefix-caching", "on,off") == 0
    table = kvsim.sweep(request_rate=[2, 4], enable_prefix_caching=[True, False], num_prompts=40, jobs=1)
    pd.testing.assert_frame_equal(table, pd.read_parquet(tmp_path / "out/table.parquet"))


def test_equal_settings_are_run_once(tmp_path):
    assert swept(tmp_path, "--max-num-seqs", "default,256,128", "--block-size", "default,16") == 0
    assert len(keys(tmp_path / "out")) == len(set(keys(tmp_path / "out"))) == 2
    table = pd.read_parquet(tmp_path / "out/table.parquet")
    assert len(table) == 6 and table["latency.e2e_s.mean"].nunique() <= 2


def test_what_is_done_is_not_computed_again_and_a_larger_sweep_takes_it(tmp_path):
    assert swept(tmp_path, "--request-rate", "2,4") == 0
    before = (tmp_path / "out/runs.jsonl").read_bytes()
    assert swept(tmp_path, "--request-rate", "2,4") == 0
    assert (tmp_path / "out/runs.jsonl").read_bytes() == before
    assert swept(tmp_path, "--request-rate", "2,4,6") == 0
    assert (tmp_path / "out/runs.jsonl").read_bytes().startswith(before)
    assert len(keys(tmp_path / "out")) == 3
    assert swept(tmp_path, "--request-rate", "2", "--force") == 0
    assert len(keys(tmp_path / "out")) == 1


def test_a_torn_line_costs_one_run(tmp_path):
    assert swept(tmp_path, "--request-rate", "2,4,6") == 0
    table = (tmp_path / "out/table.parquet").read_bytes()
    done = keys(tmp_path / "out")
    journal = tmp_path / "out/runs.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    assert swept(tmp_path, "--request-rate", "2,4,6") == 0
    assert sorted(keys(tmp_path / "out")) == sorted(done)
    assert (tmp_path / "out/table.parquet").read_bytes() == table


def test_what_cannot_be_is_told_before_anything_runs_and_is_a_row(tmp_path, capsys):
    flags = ["--model", "llama-3.1-70b", "--gpu", "h100", "--tensor-parallel-size", "1,4,3"]
    assert swept(tmp_path, *flags, "--dry-run") == 0
    said = capsys.readouterr()
    assert said.err.count("impossible: ") == 2 and "does not fit" in said.err
    assert said.out.startswith("3 runs, 2 impossible: 1 run to do, about ")
    assert not (tmp_path / "out").exists()
    assert swept(tmp_path, *flags) == 0
    table = pd.read_parquet(tmp_path / "out/table.parquet")
    assert list(table.status) == ["impossible", "finished", "impossible"]
    assert "tensor_parallel_size must divide" in table.reason[2]
    assert "1 run impossible: tensor_parallel_size must" in " ".join(capsys.readouterr().out.split())
    assert swept(tmp_path, "--gpu", "h100,nothing", "--model", "nobody", name="none") == 2
    assert capsys.readouterr().err.endswith("error: none of the 2 settings of the sweep can be\n")


class Broken(Contiguous):
    """An allocator that breaks in the middle of a run."""

    def slots_needed(self, tokens, bound):
        raise RuntimeError("no luck")


def test_a_run_that_fails_is_a_row_with_its_reason():
    table = kvsim.sweep(allocator=["paged", Broken], num_prompts=20, jobs=1)
    assert list(table.allocator) == ["paged", "Broken"]
    assert list(table.status) == ["finished", "failed"]
    assert table.reason[1] == "RuntimeError: no luck"
    assert pd.isna(table["duration_s"][1])


def test_a_file_says_the_same_as_options(tmp_path):
    (tmp_path / "sweep.toml").write_text(
        'num_prompts = 40\nrequest-rate = "2:4:2"\nallocator = ["paged", "contiguous"]\nseeds = 2\n'
        '[[case]]\nname = "chat"\n[[case]]\nname = "fixed"\ntrace = "synthetic"\n'
    )
    assert main(["sweep", str(tmp_path / "sweep.toml"), "--jobs", "1", "--out", str(tmp_path / "out")]) == 0
    table = pd.read_parquet(tmp_path / "out/table.parquet")
    assert list(table.columns[:5]) == ["case", "request_rate", "allocator", "trace", "seed"]
    assert len(table) == 16
    for figure in ("curves", "pareto", "heatmap"):
        assert (tmp_path / "out" / f"{figure}.png").stat().st_size > 10_000
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("request_rate = [")
    assert main(["sweep", str(wrong)]) == 2


def test_a_sweep_without_lists_is_told_what_it_needs(capsys):
    assert main(["sweep"]) == 2
    assert "a sweep needs lists of options" in capsys.readouterr().err


def test_runs_of_any_kind_make_one_table(tmp_path, capsys):
    out = ["--num-prompts", "30", "--no-plots", "--out"]
    assert main(["run", "--request-rate", "3", *out, str(tmp_path / "one")]) == 0
    assert main(["compare", "--allocator", "paged,contiguous", *out, str(tmp_path / "two")]) == 0
    assert swept(tmp_path, "--request-rate", "2,4", name="three") == 0
    capsys.readouterr()
    directories = [str(tmp_path / name) for name in ("one", "two", "three")]
    assert main(["table", *directories]) == 0
    printed = capsys.readouterr().out
    assert main(["table", *directories, "--out", str(tmp_path / "all.csv")]) == 0
    assert (tmp_path / "all.csv").read_text() == printed
    table = pd.read_csv(tmp_path / "all.csv")
    assert len(table) == 5 and {"run", "allocator", "request_rate", "memory.average.token_percent"} <= set(
        table
    )
    assert main(["table", str(tmp_path)]) == 2


def test_a_sweep_that_is_killed_goes_on_where_it_was(tmp_path):
    flags = ["--request-rate", "1:12:1", "--num-prompts", "400", "--jobs", "2", "--no-plots"]
    command = [sys.executable, "-m", "kvsim", "sweep", *flags, "--out"]
    here = {**os.environ, "PYTHONPATH": str(Path(kvsim.__file__).parents[1])}
    subprocess.run([*command, "whole"], cwd=tmp_path, env=here, check=True, capture_output=True)
    journal = tmp_path / "torn/runs.jsonl"
    for stop in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen([*command, "torn"], cwd=tmp_path, env=here, stderr=subprocess.PIPE)
        before = len(keys(tmp_path / "torn")) if journal.exists() else 0
        while process.poll() is None and not (
            journal.exists() and journal.read_bytes().count(b"\n") > before
        ):
            time.sleep(0.01)
        process.send_signal(stop)
        said = process.communicate()[1].decode()
        if stop == signal.SIGINT and process.returncode:
            assert "the runs that are done are kept in torn" in said
    done = keys(tmp_path / "torn")
    assert 0 < len(done) <= 12
    subprocess.run([*command, "torn"], cwd=tmp_path, env=here, check=True, capture_output=True)
    assert keys(tmp_path / "torn")[: len(done)] == done and len(keys(tmp_path / "torn")) == 12
    for name in ("table.parquet", "table.csv"):
        assert (tmp_path / "torn" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
