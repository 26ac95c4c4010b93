"""benchmarks/kernels.py: whom a failure takes along, and what is written down of it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from support.paged_case import DEVICE

from kvsim.kernels.calibration.errors import DeviceLostError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(DEVICE.type != "cpu", reason="a rehearsal is for machines without a GPU"),
]

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks/kernels.py"


@pytest.fixture
def bench(monkeypatch):
    """The program as a module."""
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # it replaces the first entry
    spec = importlib.util.spec_from_file_location("benchmarks_kernels", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def rehearsed(bench, monkeypatch, tmp_path, parts):
    """(what `main` exits with, the report)."""
    out = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["kernels.py", "--dry-run", "--parts", parts, "--out", str(out)])
    try:
        code = bench.main()
    except SystemExit as stop:
        code = stop.code
    return code, json.loads(out.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def failing_from(turn, error):
    """A call that fails from its so-manieth turn on."""
    turns = []

    def call(*_, **__):
        turns.append(1)
        if len(turns) >= turn:
            raise error
        return torch.ones(2)

    return call


def test_batches_of_a_wave_and_a_bit_are_timed(bench):
    assert {shape.name for shape in bench.DECODE} >= {f"{batch} x 4096" for batch in (24, 34, 64, 67, 72)}


@pytest.mark.parametrize("turn", [1, 2, 4])
def test_a_contestant_that_fails_while_it_is_timed_takes_nobody_along(bench, turn):
    stage = bench.Stage(dry=True, repeats=2)
    bad = failing_from(turn, RuntimeError("CUDA error: misaligned\nmore"))
    times, wrong = stage.time({"one": [list], "bad": [bad], "two": [dict]})
    assert wrong == {"bad": "RuntimeError: CUDA error: misaligned"}
    assert {name: len(seconds) for name, seconds in times.items()} == {"one": 2, "two": 2}


def test_of_a_contest_the_others_have_rows_and_it_has_its_reason(bench, monkeypatch, tmp_path):
    """The third call: right when it is checked, broken when it is timed."""
    calls = []
    ours = bench.copy_blocks

    def copy_blocks(*arguments):
        calls.append(1)
        if len(calls) > 2:
            raise RuntimeError("no")
        return ours(*arguments)

    monkeypatch.setattr(bench, "copy_blocks", copy_blocks)
    code, report = rehearsed(bench, monkeypatch, tmp_path, "moves")
    assert code is None
    rows = {row["name"]: row for row in report["rows"] if row["part"] == "moves"}
    assert rows["copy 2 blocks"]["refused"] == "RuntimeError: no"
    assert rows["gather 2 blocks"]["us"] > 0 and rows["write 8 tokens"]["us"] > 0


def test_a_part_that_fails_as_a_whole_keeps_its_rows_and_the_others_go_on(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "gather_blocks", failing_from(1, RuntimeError("no")))
    code, report = rehearsed(bench, monkeypatch, tmp_path, "moves,prefill")
    assert code == "error: moves: RuntimeError: no"
    assert report["failed"] == ["moves: RuntimeError: no"]
    assert {row["part"] for row in report["rows"]} == {"ceilings", "moves", "prefill"}


def test_a_ceiling_that_fails_takes_no_other_along(bench, monkeypatch, tmp_path):
    """Copying does: nothing is a share of it, and the command says so with exit code 1."""
    monkeypatch.setattr(torch, "neg", failing_from(1, RuntimeError("no")))
    monkeypatch.setitem(bench.PARTS, "prefill", lambda stage: [stage.row("prefill", "some", [1.0], 8)])
    code, report = rehearsed(bench, monkeypatch, tmp_path, "prefill")
    assert code == "error: ceilings: RuntimeError: copy: RuntimeError: no"
    assert [(row["name"], row["of_copy"]) for row in report["rows"]] == [
        ("read", None), ("64-cubed bf16 product", None), ("some", None)
    ]  # fmt: skip


def test_contexts_are_cut_before_attention_is_timed_and_the_cutting_is_timed_apart(
    bench, monkeypatch, tmp_path
):
    """No launch that is timed cuts, but those whose name says so; those do nothing else."""
    cut, attended = [], []
    ours = bench.cut, bench.decode_attention

    def watched_cut(*given, **more):
        cut.append(more.get("out"))
        return ours[0](*given, **more)

    def watched_attention(*given, **more):
        attended.append(more["pieces"])
        return ours[1](*given, **more)

    monkeypatch.setattr(bench, "cut", watched_cut)
    monkeypatch.setattr(bench, "decode_attention", watched_attention)
    monkeypatch.setattr(bench.Pools, "theirs", lambda pools: {})
    code, report = rehearsed(bench, monkeypatch, tmp_path, "decode")
    assert code is None
    names = [row["name"] for row in report["rows"] if row["part"] == "decode" and "us" in row]
    assert [name for name in names if bench.ONCE in name] == [
        f"{shape}: cutting, once a step" for shape in ("3 x 60", "2 x 256")
    ]
    assert len(names) == 8 and attended and None not in attended
    again = [out for out in cut if out is not None]
    assert len(cut) - len(again) == 8  # once for each contestant, and for the cutting
    assert len(again) == 2 * 2 * (2 + 2)  # shapes, launches, turns and warm-ups
    rows = {row["name"]: row for row in report["rows"]}
    assert rows["3 x 60: cutting, once a step"]["bytes"] == 0 < rows["3 x 60: contiguous"]["bytes"]


@pytest.mark.parametrize("part", ["moves", "blocks"])
def test_a_clock_that_stands_still_refuses_its_rows_and_divides_nothing(bench, monkeypatch, tmp_path, part):
    monkeypatch.setattr(bench, "on_host_clock", lambda launches: lambda: 0.0)
    code, report = rehearsed(bench, monkeypatch, tmp_path, part)
    assert (code, report["failed"]) == (None, [])
    assert {row["part"] for row in report["rows"]} == {"ceilings", part}
    assert all("no time at all" in row["refused"] and "us" not in row for row in report["rows"])


def test_a_dead_gpu_ends_it_with_what_there_is(bench, monkeypatch, tmp_path):
    def dead(error, device):
        raise DeviceLostError("the GPU answers no more")

    monkeypatch.setattr(bench, "expect_alive", dead)
    monkeypatch.setattr(bench, "copy_blocks", failing_from(1, RuntimeError("no")))
    code, report = rehearsed(bench, monkeypatch, tmp_path, "moves,prefill")
    assert code == "error: moves: the GPU answers no more"
    assert {row["name"] for row in report["rows"] if row["part"] != "ceilings"} == {"write 8 tokens"}


def test_it_needs_nothing_but_its_checkout(tmp_path):
    out = tmp_path / "rows.json"
    command = [sys.executable, str(SCRIPT), "--dry-run", "--parts", "moves", "--out", str(out)]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    report = json.loads(out.read_text())
    assert not report["measurement"]
    assert {row["part"] for row in report["rows"]} == {"ceilings", "moves"}
