"""The whole way: a rehearsal in the interpreter, journals that are resumed or refused, messages."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")

from support.paged_case import DEVICE, random, relative_error
from support.synthetic_gpu import DEAD, H200, SyntheticGpu

from kvsim.kernels import launch
from kvsim.kernels.calibration import card, device, launches, layer, steps, timing
from kvsim.kernels.calibration.all_reduce import all_reduce_seconds
from kvsim.kernels.calibration.bench import Bench
from kvsim.kernels.calibration.calibrate import calibrate
from kvsim.kernels.calibration.drift import disturbances
from kvsim.kernels.calibration.errors import (
    CalibrationError,
    DeviceLostError,
    IncompleteError,
    JournalError,
    NoGpuError,
)
from kvsim.kernels.calibration.grid import points
from kvsim.kernels.calibration.journal import Journal
from kvsim.kernels.calibration.overview import held_by_others
from kvsim.kernels.calibration.plan import Plan, plan
from kvsim.kernels.calibration.points import SENTINEL, Point, Sample, components, routing
from kvsim.kernels.calibration.room import NARROW, Room
from kvsim.kernels.calibration.soundness import exit_code_of
from kvsim.sim import __version__ as kvsim_version

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
INTERPRETED = DEVICE.type == "cpu"

needs_interpreter = pytest.mark.skipif(not INTERPRETED, reason="a rehearsal is for machines without a GPU")


@pytest.fixture
def quick():
    return Plan(H200, True, tuple(points(H200, True)))


def fixed(quick, stopwatch, journal=None, **more):
    """A calibration whose clocks stand still."""
    clocks = {"driver_version": "580.1", "clocks.sm": "1980 MHz"}
    now = datetime(2026, 1, 1, tzinfo=UTC)
    found = calibrate(
        quick, journal, stopwatch=stopwatch, read_clocks=lambda: clocks, now=lambda: now, **more
    )
    found["measured"]["seconds"] = 0.0  # of the real clock
    return found


def unread(profile):
    """Without what is read once more where a calibration goes on."""
    read = {"clocks", "sentinels", "drift"}
    measured = {name: value for name, value in profile["measured"].items() if name not in read}
    return profile | {"measured": measured}


# -- the journal ----------------------------------------------------------------------------


def test_resumed_after_every_interruption_it_gives_the_same_profile_as_in_one_go(quick, tmp_path):
    journal, asked = tmp_path / "j", []
    whole = fixed(quick, SyntheticGpu())
    for _ in range(50):
        gpu = SyntheticGpu(stop_after=20)
        try:
            found = fixed(quick, gpu, journal)
            break
        except KeyboardInterrupt:
            assert journal.exists()
        finally:
            asked += gpu.asked
    assert unread(found) == unread(whole)
    assert len(asked) == len(set(asked)) == len(quick.points)  # nothing twice


def test_a_line_cut_off_in_writing_is_measured_again(quick, tmp_path):
    journal = tmp_path / "j"
    whole = fixed(quick, SyntheticGpu(), journal)
    text = journal.read_text()
    journal.write_text(text[: len(text) * 2 // 3])
    assert unread(fixed(quick, SyntheticGpu(), journal)) == unread(whole)
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_a_journal_of_another_device_or_version_or_plan_is_refused(quick, tmp_path):
    journal = tmp_path / "j"
    fixed(quick, SyntheticGpu(), journal)
    before = journal.read_text()
    for change, words in (
        ({"name": "NVIDIA H100 80GB HBM3"}, "name NVIDIA H200, here NVIDIA H100"),
        ({"triton": "3.7.0"}, "triton 3.6.0, here 3.7.0"),
    ):
        other = Plan(type(H200)(**{**vars(H200), **change}), True, quick.points)
        with pytest.raises(JournalError, match=words):
            fixed(other, SyntheticGpu(), journal)
    full = Plan(H200, False, tuple(points(H200, False)))
    with pytest.raises(JournalError, match="another plan"):
        fixed(full, SyntheticGpu(), journal)
    assert journal.read_text() == before
    fresh = SyntheticGpu()
    fixed(quick, fresh, journal, fresh=True)
    assert len(fresh.asked) == len(quick.points)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("LEAST_SHARE_TOKENS", 128),
        ("DECODE", launch.DECODE | {(128, 2): launch.Tiling(128, 8, 2)}),
        ("DECODE", launch.DECODE | {(128, 2): replace(launch.DECODE[128, 2], programs=3)}),
        ("PREFILL", launch.PREFILL | {(128, 2): launch.Tiling(32, 8, 3, rows=128)}),
        ("PREFILL_IN_REGISTERS", {}),
        ("LATENT", launch.LATENT | {2: replace(launch.LATENT[2], rows=16)}),
        ("LATENT_ON_HOPPER", {}),
    ],
)  # fmt: skip
def test_a_journal_of_other_launches_is_refused(quick, tmp_path, monkeypatch, name, other):
    journal = tmp_path / "j"
    fixed(quick, SyntheticGpu(stop_after=None), journal)
    monkeypatch.setattr(launch, name, other)
    with pytest.raises(JournalError, match="another plan"):
        fixed(quick, SyntheticGpu(), journal)


@pytest.mark.parametrize("module", ["timing.py", "drift.py", "attend.py"])
def test_a_journal_of_another_way_of_timing_is_refused(quick, tmp_path, monkeypatch, module):
    journal = tmp_path / "j"
    fixed(quick, SyntheticGpu(), journal)
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, **how: read(path, **how) + "# changed" * (path.name == module)
    )
    with pytest.raises(JournalError, match="another plan"):
        fixed(quick, SyntheticGpu(), journal)


def test_a_file_that_is_no_journal_is_refused_and_kept(quick, tmp_path):
    for text in ("", "{}\n", "[1]\n", "a diary\n"):
        path = tmp_path / "diary"
        path.write_text(text)
        with pytest.raises(JournalError, match="is no journal"):
            fixed(quick, SyntheticGpu(), path)
        with pytest.raises(JournalError, match="is no journal"):
            Journal(path, {"device": {}, "plan": "", "date": ""}, fresh=True)
        assert path.read_text() == text


def test_progress_ends_with_nothing_left(quick):
    told = []
    fixed(quick, SyntheticGpu(), progress=told.append)
    done = [one.done for one in told]
    assert done == sorted(done)
    assert (told[0].done, told[-1].done, told[-1].left_s, told[-1].part) == (0, len(quick.points), 0, "")
    assert told[0].left_s == pytest.approx(quick.estimated_s())
    assert [one.part for one in told[:2]] == ["ceilings", "launch"]


# -- a GPU that dies ------------------------------------------------------------------------


@pytest.mark.parametrize("dies_after", [0, 3, 100, 150])
def test_where_points_fail_from_some_point_on_there_is_no_profile_and_they_are_tried_again(
    quick, tmp_path, dies_after
):
    journal = tmp_path / "j"
    whole = fixed(quick, SyntheticGpu())
    assert dies_after < len(quick.points) - 3
    dying = SyntheticGpu(dies_after=dies_after)
    with pytest.raises(IncompleteError, match=r"no profile without the part .* unspecified launch failure"):
        fixed(quick, dying, journal)
    again = SyntheticGpu()
    found = fixed(quick, again, journal)
    assert unread(found) == unread(whole)
    assert again.asked == dying.asked[dies_after:]


def test_what_was_faster_than_the_device_can_be_is_tried_again(quick, tmp_path):
    """More than a tenth of a part: no profile, and the same command measures those anew."""
    some, journal = [point.key for point in quick.points if point.part == "product"][:9], tmp_path / "j"
    with pytest.raises(
        IncompleteError, match=r"no profile without the part product: .* more than the device"
    ):
        fixed(quick, SyntheticGpu(impossible=some), journal)
    again = SyntheticGpu()
    assert unread(fixed(quick, again, journal)) == unread(fixed(quick, SyntheticGpu()))
    assert again.asked == some


def test_a_part_of_which_only_held_out_points_fit_is_missing(quick):
    class Small(SyntheticGpu):
        def sample(self, point):
            large = point.part == "sampling" and point.role == "grid"
            return Sample((), 0, "MemoryError", fits=False) if large else super().sample(point)

    with pytest.raises(IncompleteError, match="no profile without the part sampling: "):
        fixed(quick, Small())


def test_a_few_points_that_fail_are_left_out_with_their_reason(quick, tmp_path):
    class Flawed(SyntheticGpu):
        def sample(self, point):
            return DEAD if point.part == "decode" and point.x["block_size"] == 256 else super().sample(point)

    found = fixed(quick, Flawed())
    assert [(one["part"], one["reason"], one["fits"]) for one in found["refused"]] == [
        ("decode", DEAD.failure, True)
    ]


def test_a_part_that_most_steps_do_without_is_left_out_where_too_much_of_it_fails():
    """All latents, and every second copy to the GPU: the profile has neither, and tells why. Nor has it
    experts, and so no composed steps of them."""

    class Flawed(SyntheticGpu):
        def sample(self, point):
            fails = point.part in {"latent", "experts"}
            fails |= point.part == "to_gpu" and point.x["bytes"] > 2**18
            return DEAD if fails else super().sample(point)

    full = Plan(H200, False, tuple(points(H200, False)))
    found = fixed(full, Flawed())
    left = {"latent", "experts", "to_gpu"}
    assert set(full.parts) - {"ceilings", "launch", "composed"} - set(found["parts"]) == left
    assert {one["part"] for one in found["refused"]} == left
    composed = {
        (one["x"].get("experts"), one["x"].get("weight_bytes")) for one in found["composed"]["points"]
    }
    assert composed == {(None, 2), (None, 1), (128, 1), (None, None)}


def test_what_does_not_fit_the_memory_is_no_failure(quick):
    """A third of the decode points: a GPU that others use."""

    class Small(SyntheticGpu):
        def sample(self, point):
            large = point.part == "decode" and point.x["batch"] * point.x["context"] > 10_000
            return Sample((), 0, "MemoryError", fits=False) if large else super().sample(point)

    found = fixed(quick, Small())
    assert len(found["refused"]) > len([point for point in quick.points if point.part == "decode"]) / 4


@needs_interpreter
@pytest.mark.parametrize("where", ["captured", "timed", "cleaned"])
def test_a_broken_context_ends_the_calibration_with_an_error(monkeypatch, where):
    """Whether capturing, timing or cleaning up breaks it: one line, and no point after it is tried."""
    broken = torch.AcceleratorError if hasattr(torch, "AcceleratorError") else RuntimeError

    def fails(*_, **__):
        raise broken("CUDA error: an illegal memory access was encountered\nmore")

    bench = Bench(rehearsal=True)
    some = [Point("launch", {"what": what}) for what in ("graph", "replay")]
    if where == "captured":
        monkeypatch.setattr(bench, "_replay", fails)
    elif where == "timed":
        monkeypatch.setattr(bench, "_replay", lambda point, room: (fails, 1))
    else:
        monkeypatch.setattr(torch.cuda, "empty_cache", fails)
        monkeypatch.setattr(bench, "_replay", lambda point, room: (lambda: 1.0, 1))
        bench._room, bench.rehearsal = Room(rehearsal=True), False
    if where != "cleaned":
        bench._room = Room(rehearsal=True)
        monkeypatch.setattr(torch, "ones", fails)
    with pytest.raises(DeviceLostError, match=r"illegal memory access was encountered$"):
        bench.seconds(some)


@needs_interpreter
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            RuntimeError("CUDA error: too many resources requested for launch"),
            "RuntimeError: CUDA error: too ",
        ),
        (subprocess.CalledProcessError(1, ["gcc"]), "CalledProcessError: Command '['gcc']' returned "),
        (FileNotFoundError(2, "No such file", "ptxas"), "FileNotFoundError: "),
    ],
    ids=["launch", "no headers", "no assembler"],
)
def test_what_fails_on_a_living_device_is_its_own_reason_and_the_others_go_on(monkeypatch, error, said):
    bench, turns = Bench(rehearsal=True), []

    def fails():
        turns.append(1)
        if len(turns) > 1:
            raise error
        return 1.0

    replays = {"graph": fails, "replay": lambda: 2.0}
    monkeypatch.setattr(bench, "_replay", lambda point, room: (replays[point.x["what"]], 1))
    failed, well = bench.seconds([Point("launch", {"what": what}) for what in ("graph", "replay")])
    assert (failed.seconds, failed.fits) == ((), True)
    assert failed.failure.startswith(said)
    assert well.seconds == (2.0, 2.0)
    assert len(turns) == 2  # no more turns for it


def test_a_program_that_finds_a_dead_gpu_keeps_what_it_measured(quick, tmp_path):
    class Lost(SyntheticGpu):
        def seconds(self, points):
            if len(self.asked) > 30:
                raise DeviceLostError("the GPU answers no more")
            return super().seconds(points)

    journal, gpu = tmp_path / "j", Lost()
    with pytest.raises(DeviceLostError, match=rf"no more; \d+ of {len(quick.points)} points are kept: "):
        fixed(quick, gpu, journal)
    again = SyntheticGpu()
    fixed(quick, again, journal)
    assert len(again.asked) == len(quick.points) - len(gpu.asked)


def test_composed_steps_that_are_not_the_sum_of_their_parts_are_a_fault(quick):
    (fault,) = fixed(quick, SyntheticGpu(slow="composed"))["measured"]["faults"]
    assert fault.startswith("composed steps are 1")
    assert fixed(quick, SyntheticGpu())["measured"]["faults"] == []


# -- a GPU that changes meanwhile -----------------------------------------------------------


def test_a_gpu_that_slows_down_is_told_by_its_sentinels_with_an_exit_code_of_its_own(quick):
    steady = fixed(quick, SyntheticGpu())["measured"]
    parts = list(quick.parts)
    assert [one["when"] for one in steady["sentinels"]] == [*(f"before {part}" for part in parts), "after"]
    assert all(0 < drift < 0.02 for drift in steady["drift"].values())
    assert (steady["faults"], exit_code_of(steady)) == ([], 0)

    slower = fixed(quick, SyntheticGpu(slows_after=len(quick.points) // 2, by=1.06))["measured"]
    assert slower["drift"].keys() == {"decode", "product"}
    assert all(drift == pytest.approx(0.06, abs=0.02) for drift in slower["drift"].values())
    (fault,) = (fault for fault in slower["faults"] if "drift" in fault)
    assert re.fullmatch(r"the GPU drifted: decode by \d.\d%, product by \d.\d%, more than 3%", fault)
    assert exit_code_of(slower) == 4

    barely = fixed(quick, SyntheticGpu(slows_after=100, by=1.01))["measured"]
    assert exit_code_of(barely) == 0


def test_sentinels_that_fail_are_a_fault_as_drift_is(quick):
    class Silent(SyntheticGpu):
        def sample(self, point):
            silent = point.role == SENTINEL and point.part == "product" and self.readings < 5
            return DEAD if silent else super().sample(point)

    measured = fixed(quick, Silent())["measured"]
    first, second, *_ = quick.parts
    assert measured["faults"] == [f"the sentinels failed before {part}: product" for part in (first, second)]
    assert exit_code_of(measured) == 4


def test_sentinels_that_take_no_time_are_a_fault_too():
    told = {"sentinels": [{"when": "before decode", "decode": [0.0, 0.0], "product": [1e-3]}]}
    assert disturbances(told) == ["the sentinels failed before decode: decode"]


def test_sentinels_that_took_no_time_are_forgotten_where_a_calibration_goes_on(quick, tmp_path):
    class Still(SyntheticGpu):
        def sample(self, point):
            found = super().sample(point)
            return replace(found, seconds=(0.0, 0.0)) if point.role == SENTINEL else found

    journal = tmp_path / "j"
    with pytest.raises(KeyboardInterrupt):
        fixed(quick, Still(stop_after=20), journal)
    assert fixed(quick, SyntheticGpu(), journal)["measured"]["faults"] == []


def test_a_card_that_is_slower_when_a_calibration_goes_on_is_told(quick, tmp_path):
    """Stopped and gone on with within one part: no other part begins there."""
    journal = tmp_path / "j"
    first = next(i for i, point in enumerate(quick.points) if point.part == "decode")
    with pytest.raises(KeyboardInterrupt):
        fixed(quick, SyntheticGpu(stop_after=first + 7), journal)
    measured = fixed(quick, SyntheticGpu(slows_after=-1, by=1.05), journal)["measured"]
    whens = [one["when"] for one in measured["sentinels"]]
    assert whens.count("before decode") == 2
    assert exit_code_of(measured) == 4


@pytest.mark.parametrize(
    ("bits", "said"),
    [
        ("0x0000000000000004", None),  # the power limit, which products reach
        ("0x0000000000000000", None),
        ("0x0000000000000068", "hw_slowdown, hw_thermal_slowdown, sw_thermal_slowdown"),
        ("[N/A]", None),
    ],
)
def test_heat_is_a_fault_and_the_power_limit_is_none(quick, bits, said):
    readings = []

    def clocks():
        readings.append(1)
        return {"slowed_by": card.reasons_of(bits if len(readings) == 4 else "0x0")}

    found = calibrate(quick, stopwatch=SyntheticGpu(), read_clocks=clocks)["measured"]
    part = list(quick.parts)[2]  # the clocks are read first for the driver's version
    assert found["faults"] == ([] if said is None else [f"the GPU throttled before {part}: {said}"])
    assert exit_code_of(found) == (0 if said is None else 4)


def test_the_clocks_are_those_of_the_card_that_torch_has(monkeypatch):
    rows = ["GPU-aa, 580.1, 1980 MHz, 0x0000000000000004", "GPU-bb, 580.1, 345 MHz, 0x0000000000000001"]
    monkeypatch.setattr(card, "WANTED", ("driver_version", "clocks.sm"))

    def nvidia_smi(command, **_):
        if "clocks_event_reasons" in command[1]:  # an old driver
            raise subprocess.CalledProcessError(2, command)
        return subprocess.CompletedProcess(command, 0, "\n".join(rows), "")

    monkeypatch.setattr(subprocess, "run", nvidia_smi)
    for uuid in ("bb", "GPU-bb", "BB"):
        assert card.clocks(uuid)["clocks.sm"] == "345 MHz"
    assert card.clocks("bb") == {"driver_version": "580.1", "clocks.sm": "345 MHz", "slowed_by": "gpu_idle"}
    assert card.clocks("aa")["slowed_by"] == "sw_power_cap"
    assert card.clocks("cc") == card.clocks() == {}
    del rows[1]
    assert card.clocks("a slice of it")["clocks.sm"] == "1980 MHz"


def test_of_the_card_are_asked_its_clocks_power_limit_and_modes(monkeypatch):
    def nvidia_smi(command, **_):
        names = command[1].removeprefix("--query-gpu=").split(",")
        return subprocess.CompletedProcess(command, 0, ", ".join(f"some {name}" for name in names), "")

    monkeypatch.setattr(subprocess, "run", nvidia_smi)
    asked = {
        "driver_version", "clocks.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu", "pstate",
        "mig.mode.current", "ecc.mode.current",
    }  # fmt: skip
    reasons = "some clocks_event_reasons.active"
    assert card.clocks() == {name: f"some {name}" for name in asked} | {"slowed_by": reasons}


def test_a_profile_says_with_what_it_was_made(quick):
    found = fixed(quick, SyntheticGpu())
    measured = found["measured"]
    assert measured["kvsim"] in (kvsim_version, "a checkout")  # the second where kvsim is not installed
    assert measured["plan"] == quick.digest
    assert measured["cublas"] == H200.cublas
    assert measured["tilings"]["decode"]["128 x 2"] == asdict(launch.DECODE[128, 2])
    for part in found["parts"].values():
        for point in part["points"]:
            assert median(point["samples_s"]) == point["median_s"]


@needs_interpreter
def test_clocks_are_read_while_products_run(monkeypatch):
    bench, ran, began = Bench(rehearsal=True), [], threading.Event()
    mm = torch.mm

    def counted(*arguments, **more):
        ran.append(1)
        if len(ran) > 2:
            began.set()
        return mm(*arguments, **more)

    monkeypatch.setattr(torch, "mm", counted)
    assert bench.under_load(lambda: began.wait(20)) is True


@needs_interpreter
def test_starting_a_graph_is_timed_without_waiting_for_it(monkeypatch):
    bench, room = Bench(rehearsal=True), Room(rehearsal=True)
    bench.rehearsal = False
    done = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: (done.append("wait"), time.sleep(0.2)))
    graph = SimpleNamespace(replay=lambda: done.append("replay"))
    monkeypatch.setattr("kvsim.kernels.calibration.bench.graph_of", lambda calls: graph)
    run, launches_run = bench._launch("replay", room)
    assert run() < 0.1
    assert done == ["wait"] + ["replay"] * launches_run
    assert launches_run > 1


def test_the_work_ahead_of_a_graph_writes_nothing(monkeypatch):
    lead = torch.ones(64)
    monkeypatch.setattr(timing, "_lead", lambda: lead)
    monkeypatch.setattr(timing, "on_gpu_clock", lambda calls: lambda: 1.0)
    written = lead._version
    assert timing.Captured((), SimpleNamespace(replay=None))() == 1.0
    assert lead._version == written


# -- messages -------------------------------------------------------------------------------


@needs_interpreter
def test_without_a_gpu_the_error_is_one_of_its_own():
    code = (
        "from kvsim.kernels.calibration.plan import plan\n"
        "from kvsim.kernels.calibration.errors import NoGpuError\n"
        "try: plan()\n"
        "except NoGpuError as error: print(error)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout == "there is no GPU that torch can use\n"
    assert issubclass(NoGpuError, CalibrationError)


def test_a_gpu_that_does_not_answer_is_an_error(quick, monkeypatch):
    """As one that has fallen off the bus, or that another process has for itself."""

    def fails(*_):
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore")

    monkeypatch.setattr(device, "_choose_interpreter", lambda interpret: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", fails)
    monkeypatch.setattr(torch.cuda, "mem_get_info", fails)
    for asked in (lambda: device.found_device(interpret=False), lambda: held_by_others(quick)):
        with pytest.raises(DeviceLostError, match=r"the GPU does not answer: .* busy or unavailable$"):
            asked()


@needs_interpreter
def test_nothing_is_measured_where_kernels_are_interpreted():
    with pytest.raises(CalibrationError, match="TRITON_INTERPRET is set"):
        plan()


# -- what is launched -----------------------------------------------------------------------


@needs_interpreter
def test_rehearsal_from_end_to_end(tmp_path):
    """As a program, in a process of its own that has nothing of kvsim but the kernels."""
    (tmp_path / "kvsim").symlink_to(ROOT / "kvsim")
    out = tmp_path / "out.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kvsim.kernels.calibration", "--interpret", "--out", str(out)]
    found = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-2000:]
    assert "none of these times is a measurement" in found.stdout
    profile = json.loads(out.read_text(encoding="utf-8"))
    assert (profile["kind"], profile["gpu"], profile["device"]["name"]) == ("rehearsal", None, "CPU")
    assert set(profile["parts"]) == {
        "decode", "latent", "prefill", "product", "product_fp8", "lm_head", "experts", "experts_fp8",
        "sampling", "elementwise", "kv_write", "block_copy", "to_host", "to_gpu",
    }  # fmt: skip
    assert profile["refused"] == []
    assert len(profile["composed"]["points"]) == 5
    assert not (tmp_path / "out.json.journal").exists()


@pytest.fixture(scope="module")
def room():
    return Room(INTERPRETED)


def test_stretches_of_the_slab_differ_and_are_never_zero(room):
    first, second = (room.cut(64, 64) for _ in "ab")
    assert first.data_ptr() % 16 == 0
    assert not torch.equal(first, second)
    assert first.float().std().item() == pytest.approx(1, abs=0.1)
    with pytest.raises(MemoryError):
        room.cut(10**12)


def test_every_launch_has_other_keys(room, monkeypatch):
    seen = []
    monkeypatch.setattr(room, "launches", lambda size: 4)
    monkeypatch.setattr(
        launches, "decode_attention", lambda query, keys, *_, **__: seen.append(keys.data_ptr())
    )
    x = {"batch": 2, "context": 40, "kv_heads": 2, "group": 2, "head_dim": 32, "element_bytes": 2}
    for call in launches.decode(room, x | {"block_size": 16}):
        call()
    assert len(set(seen)) == 4


@pytest.mark.parametrize("element_bytes", [1, 2])
def test_every_launch_over_latents_has_others_and_is_shared_out_once(room, monkeypatch, element_bytes):
    seen = []
    monkeypatch.setattr(room, "launches", lambda *_: 4)
    monkeypatch.setattr(
        launches, "latent_attention",
        lambda query, cache, *_, pieces, **__: seen.append((cache.data_ptr(), cache.dtype.itemsize, pieces)),
    )  # fmt: skip
    x = {"batch": 3, "context": 200, "heads": 4, "latent": 32, "rope": 16, "block_size": 16}
    for call in launches.latent(room, x | {"element_bytes": element_bytes}):
        call()
    addresses, sizes, pieces = (set(column) for column in zip(*seen, strict=True))
    assert (len(addresses), sizes, len(pieces)) == (4, {element_bytes}, 1)


@pytest.mark.parametrize("part", ["experts", "experts_fp8"])
def test_every_launch_has_other_experts_chosen_anew(room, monkeypatch, part):
    seen = []
    monkeypatch.setattr(room, "launches", lambda *_: 3)
    monkeypatch.setattr(launches, "routed_experts", lambda *given, **more: seen.append((given, more)))
    for call in launches.experts(room, routing(20, 64, 32, 8, 2, local=4), part):
        call()
    weights = {given[place].data_ptr() for given, _ in seen for place in (3, 4)}
    assert len(weights) == 6 and not torch.equal(seen[0][0][1], seen[1][0][1])
    kind, scale = (NARROW, layer.SCALE) if part == "experts_fp8" else (room.dtype, 1.0)
    for (x, _, factors, gate_up, down), more in seen:
        assert (x.dtype, gate_up.dtype, down.dtype) == (kind,) * 3 and more.get("scale", 1.0) == scale
        assert (gate_up.shape, down.shape) == ((4, 64, 64), (4, 64, 32))
        assert factors.sum(1).tolist() == pytest.approx([1.0] * 20)


@pytest.mark.parametrize(("skew", "least", "most"), [(0, 0.8, 1.2), (1.2, 3, 12)])
def test_experts_are_chosen_evenly_or_by_a_power_law(room, skew, least, most):
    """How often the busiest of 64 is chosen, over the mean; every token takes different ones."""
    chosen = launches.choice(room, routing(8000, 64, 32, 64, 4, skew=skew)).cpu()
    assert chosen.shape == (8000, 4) and chosen.dtype == torch.int32
    assert all(len(set(row)) == 4 for row in chosen.tolist())
    counts = chosen.flatten().bincount(minlength=64)
    assert least < counts.max() / 500 < most
    assert (counts.min() > 400) == (skew == 0)


def test_contexts_are_shared_out_again_and_again_in_one_memory(room, monkeypatch):
    """As engines do, and captured graphs: what is timed makes nothing."""
    outs, ours = [], launches.cut
    monkeypatch.setattr(room, "launches", lambda *_: 3)

    def watched(*given, **more):
        outs.append(more.get("out"))
        return ours(*given, **more)

    monkeypatch.setattr(launches, "cut", watched)
    calls = launches.cutting(room)
    pieces = [call() for call in calls]
    assert outs[0] is None and outs[1:] == pieces == [pieces[0]] * 3


def test_block_tables_are_shuffled_and_no_block_is_shared(room):
    table, blocks = launches.block_tables(room, [100, 1, 250], 16)
    used = [*table[0, :7].tolist(), *table[1, :1].tolist(), *table[2, :16].tolist()]
    assert sorted(used) == list(range(24))
    assert blocks == 24
    assert used != sorted(used)


def test_a_composed_step_writes_new_tokens_where_its_attention_reads_them(room):
    table = torch.tensor([[3, 1], [2, 0], [5, 4]])
    slots = steps.new_slots(table, [5, 8, 7], [1, 1, 3], 4)
    assert slots.tolist() == [1 * 4, 0 * 4 + 3, 4 * 4, 4 * 4 + 1, 4 * 4 + 2]


@pytest.mark.parametrize("experts", [0, 4])
def test_a_composed_step_launches_what_it_is_said_to_consist_of(room, monkeypatch, experts):
    """A layer's kernels in order, counted against `components`."""
    counted = {"elementwise": 0, "product": 0, "kv_write": 0, "decode": 0, "prefill": 0, "experts": 0}

    def counting(part, call):
        def counted_call(*arguments, **more):
            counted[part] += 1
            return call(*arguments, **more)

        return counted_call

    for part, where, name in (
        ("decode", steps, "decode_attention"), ("prefill", steps, "prefill_attention"),
        ("kv_write", steps, "write_kv"), ("elementwise", layer, "norm"), ("elementwise", layer, "rotary"),
        ("elementwise", layer, "activation"), ("product", torch, "mm"),
        ("experts", launches, "routed_experts"),
    ):  # fmt: skip
        monkeypatch.setattr(where, name, counting(part, getattr(where, name)))
    monkeypatch.setattr(room, "launches", lambda size: 1)
    toys = [point.x for point in plan_of_toys() if point.part == "composed" and point.x["what"] == "layer"]
    x = next(x for x in toys if x["sequences"] and x["batch"] and x.get("experts", 0) == experts)
    (run,) = steps.composed(room, x)
    run()
    wanted = dict.fromkeys(counted, 0)
    for point, count in components(x):
        wanted[point.part] += count
    assert counted == wanted


def plan_of_toys():
    from kvsim.kernels.calibration.device import Device

    return points(Device("CPU", 2**34, (9, 0), 2, 1, None, "", "", ""), False)


def test_a_point_that_does_not_fit_has_a_reason_and_the_others_go_on():
    if not INTERPRETED:
        pytest.skip("would fill the GPU")
    fits = Point("product", {"tokens": 2, "inputs": 32, "outputs": 32})
    large = Point("product", {"tokens": 2, "inputs": 2**15, "outputs": 2**15})
    found = Bench(rehearsal=True).seconds([large, fits])
    assert found[0].seconds == ()
    assert "do not fit" in found[0].failure
    assert len(found[1].seconds) == 2


@needs_interpreter
def test_sums_over_two_processes():
    asked = [Point("all_reduce", {"gpus": 2, "bytes": size}) for size in (256, 1024)]
    found = all_reduce_seconds(asked, repeats=3, rehearsal=True)
    assert [len(sample.seconds) for sample in found] == [3, 3]
    assert all(sample.failure is None for sample in found)


# -- the small kernels of a layer -----------------------------------------------------------


@pytest.mark.parametrize("hidden", [64, 80])
def test_norm_with_residual(hidden):
    generator = torch.Generator().manual_seed(0)
    x, residual, weight = (
        random(generator, *shape).to(DEVICE) for shape in ((3, hidden), (3, hidden), (hidden,))
    )
    out, total = torch.empty_like(x), x.cpu().double() + residual.cpu().double()
    layer.norm(x, residual, weight, out).run()
    expected = total / (total.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight.cpu().double()
    assert relative_error(residual, total) < 5e-4
    assert relative_error(out, expected) < 1e-3


def test_rotary_embedding():
    """Pairs of numbers turn by their token's angle; what lies behind the heads is left out."""
    generator = torch.Generator().manual_seed(0)
    tokens, heads, head_dim = 3, 3, 32
    x = random(generator, tokens, heads * head_dim + 64).to(DEVICE)
    angle = torch.rand(tokens, head_dim // 2, generator=generator)
    out = torch.full((tokens, heads, head_dim), torch.nan, dtype=x.dtype, device=DEVICE)
    layer.rotary(x, out, angle.cos().to(DEVICE), angle.sin().to(DEVICE)).run()
    there = x.cpu().double()[:, : heads * head_dim].view(tokens, heads, 2, -1)
    turned = torch.complex(there[:, :, 0], there[:, :, 1]) * torch.exp(1j * angle.double())[:, None]
    assert relative_error(out, torch.cat([turned.real, turned.imag], -1)) < 5e-4


def in_8_bits(*shape):
    """Numbers that 8 bits hold exactly once they are scaled: the interpreter rounds others wrongly."""
    drawn = random(torch.Generator().manual_seed(0), *shape).float()
    return ((drawn * layer.SCALE).to(NARROW).float() / layer.SCALE).to(Room(INTERPRETED).dtype).to(DEVICE)


@pytest.mark.parametrize("shape", [(3, 80), (17, 1024)])
def test_conversion_to_8_bits_scales_and_clamps(shape):
    x, out = in_8_bits(*shape), torch.zeros(shape, device=DEVICE).to(NARROW)
    x[0, :2] = torch.tensor([1e3, -1e3])
    layer.quantize(x, out).run()
    assert out.float().tolist() == (x.float() * layer.SCALE).clamp(-448, 448).tolist()


@pytest.mark.parametrize("narrow", [False, True])
def test_products_multiply_by_weights_of_their_own(room, narrow, monkeypatch):
    """In 8 bits as well: the scales come off again, and no weight is NaN."""
    weights, ours = [], room.cut
    monkeypatch.setattr(
        room, "cut", lambda *shape, **kind: weights.append(ours(*shape, **kind)) or weights[-1]
    )
    x, out = in_8_bits(5, 64), room.new(5, 48)
    for _ in "ab":
        launches.multiplication(room, x, out, narrow)()
        exact = x.cpu().double() @ weights[-1].float().cpu().double().t()
        assert relative_error(out, exact) < 5e-3
    assert weights[0].data_ptr() != weights[1].data_ptr()
    assert {each.dtype for each in weights} == {NARROW if narrow else room.dtype}


def test_gated_activation():
    x = random(torch.Generator().manual_seed(0), 2, 2 * 1040).to(DEVICE)
    out = torch.full((2, 1040), torch.nan, dtype=x.dtype, device=DEVICE)
    layer.activation(x, out).run()
    gate, up = x.cpu().double().chunk(2, -1)
    assert relative_error(out, gate * gate.sigmoid() * up) < 1e-3


def test_reading_reads_all():
    source = torch.arange(2 * 8192, dtype=torch.float32, device=DEVICE) % 7
    sums = torch.zeros(2, device=DEVICE)
    layer.read(source, sums).run()
    assert sums.tolist() == [source[:8192].sum().item(), source[8192:].sum().item()]


def test_sampling_draws_by_probability():
    torch.manual_seed(0)
    logits = torch.tensor([0.7, 0.2, 0.1]).log().repeat(4000, 1).half().to(DEVICE)
    shares = launches.sample(logits).bincount(minlength=3).float() / 4000
    assert shares.tolist() == pytest.approx([0.7, 0.2, 0.1], abs=0.03)
