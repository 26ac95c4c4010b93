"""`sim calibrate` as its users meet it: plan, interruption, profile, and `sim calibrate show`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from support.profiles import EXAMPLE, example, written
from support.synthetic_profile import synthetic_profile

from kvsim import cli
from kvsim.kernels.calibration.earlier import kept_as
from kvsim.kernels.calibration.errors import CalibrationError, NoGpuError
from kvsim.reports.calibration.profile import Error, fit_of
from kvsim.reports.calibration.words import duration, rate, size, span
from kvsim.reports.figures import calibration
from kvsim.reports.figures.style import SCREEN, STYLES
from kvsim.sim.cost.profile_files import find_profile, read_profile

pytestmark = pytest.mark.slow

ROOT = Path(cli.__file__).resolve().parent


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """The user's own directory, empty; nothing around; 80 columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVSIM_PROFILES", str(tmp_path / "own"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "own"


@pytest.fixture
def sim(capsys):
    """Carry out a command line: exit code, stdout and stderr."""

    def sim(*arguments):
        code = cli.main(list(map(str, arguments)))
        out, err = capsys.readouterr()
        for line in (out + err).splitlines():
            told = re.sub(r"/\S+/\S+", "FILE", line).rstrip()  # paths stay whole, however long
            assert len(told) <= 80 or told.startswith("error: ")
        return code, out, err

    return sim


def flat(text):
    """The words of a text whose lines are broken anywhere."""
    return " ".join(text.split())


# -- a rehearsal, from end to end -----------------------------------------------------------------


def start(*arguments, first=""):
    """The command as a process of its own, in the current directory; Triton not yet told to interpret."""
    code = f"import sys; {first}sys.path.insert(0, {str(ROOT)!r}); import cli; sys.exit(cli.main())"
    kept = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=kept, **pipes)


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory):
    """A rehearsal that is stopped by SIGTERM in the middle, and gone on with in this process."""
    pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")
    from kvsim.kernels.calibration import bench
    from kvsim.kernels.launch import INTERPRETED

    if not INTERPRETED:
        pytest.skip("a rehearsal is for machines without a GPU")
    out = tmp_path_factory.mktemp("rehearsal") / "toy.json"
    journal = out.with_name("toy.json.journal")
    process = start("calibrate", "--interpret", "--out", str(out))
    for _ in range(1200):
        if process.poll() is not None or (journal.exists() and journal.read_text().count("\n") > 4):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    before = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    asked, seconds = [], bench.Bench.seconds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            bench.Bench,
            "seconds",
            lambda self, points: (
                asked.extend(point.key for point in points if point.role != "sentinel")
                or seconds(self, points)
            ),
        )
        code = cli.main(["calibrate", "--interpret", "--out", str(out)])
    return SimpleNamespace(
        out=out, journal=journal, stopped=process.returncode, said=said, code=code,
        before=[row[0] for entry in before for row in entry.get("points", ())], asked=asked,
    )  # fmt: skip


def test_terminated_it_keeps_what_is_measured_and_says_so(rehearsed):
    assert rehearsed.stopped == 143, rehearsed.said
    points = re.search(r"interrupted: (\d+) of (\d+) points are measured and kept; the same", rehearsed.said)
    assert points, rehearsed.said
    assert int(points[1]) == len(rehearsed.before) < int(points[2])
    assert "nothing was written" not in rehearsed.said


def test_gone_on_with_it_measures_nothing_twice(rehearsed):
    assert rehearsed.code == 0
    assert rehearsed.asked and not set(rehearsed.asked) & set(rehearsed.before)
    points = re.search(r" of (\d+) points", rehearsed.said)
    assert len(rehearsed.asked) + len(rehearsed.before) == int(points[1])
    assert not rehearsed.journal.exists()


def test_a_rehearsal_is_shown_and_run_as_one(rehearsed, sim):
    code, out, err = sim("calibrate", "show", rehearsed.out, "--no-plots")
    assert (code, err) == (0, "")
    assert out.startswith("toy: rehearsal, not a measurement, ")
    assert "none of these times is a measurement" in flat(out)
    code, out, _ = sim(
        "run", "--gpu", rehearsed.out, "--model", "gemma-3-4b", "--num-prompts", "3", "--no-plots"
    )
    assert code == 0
    assert "profile toy, rehearsal, not a measurement" in flat(out)
    assert "they say nothing about any GPU" in flat(out)


# -- on a GPU, which is a synthetic one -----------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch):
    """A synthetic H200 in the place of this machine; what is measured, and how it may be stopped."""
    pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")
    from support.synthetic_gpu import H200, SyntheticGpu

    from kvsim.commands import calibrate as calibrating
    from kvsim.kernels.calibration import bench, calibrate, plan

    state = SimpleNamespace(
        asked=[], stop_after=None, dies_after=None, slow=None, slows_after=None, device=H200
    )

    def made(rehearsal):
        assert not rehearsal
        how = {name: vars(state)[name] for name in ("stop_after", "dies_after", "slow", "slows_after")}
        found = SyntheticGpu(**how, by=1.1)
        found.asked = state.asked
        return found

    monkeypatch.setattr(plan, "found_device", lambda interpret: state.device)
    monkeypatch.setattr(bench, "Bench", made)
    monkeypatch.setattr(calibrating, "held_by_others", lambda planned: 7 * 2**30)
    monkeypatch.setattr(calibrate, "clocks", lambda uuid: {})
    return state


def test_the_plan_is_told_before_anything_is_measured(gpu, sim):
    gpu.stop_after = 0
    code, out, err = sim("calibrate", "--quick")
    assert (code, out, gpu.asked) == (130, "", [])
    lines = err.splitlines()
    assert lines[0] == "NVIDIA H200, 140.4 GiB, torch 2.11.0, triton 3.6.0"
    assert lines[1].startswith("note: other programs hold 7 GiB of this GPU")
    rows = {line[:19].strip(): line.split() for line in lines if re.match(r"[a-zGK][\w ,]{17} +\d", line)}
    parts = {"ceilings", "launches", "decode attention", "prefill attention", "matrix products", "KV write"}
    assert parts | {"block copies", "GPU to host", "host to GPU", "composed steps", "total"} <= set(rows)
    counted = [int(line[:30].split()[-1]) for line in lines if re.match(r"[a-zGK][\w ,]{17} +\d", line)]
    assert sum(counted[:-1]) == counted[-1] > 50
    assert re.search(r"left out: decode attention, \d+ points that would not fit the memory", flat(err))
    assert "left out: all-reduce, it takes two GPUs" in err
    assert flat(err).endswith(
        f"interrupted: 0 of {counted[-1]} points are measured and kept; the same command continues"
    )


def test_interrupted_and_gone_on_with_nothing_is_measured_twice_and_gpus_find_it(gpu, sim, own):
    gpu.stop_after = 60
    code, out, err = sim("calibrate", "--quick")
    measured = len(gpu.asked)
    assert (code, out) == (130, "")
    assert f"interrupted: {measured} of " in err
    assert [path.name for path in own.iterdir()] == ["nvidia-h200-quick.json.journal"]
    gpu.stop_after = None
    code, out, err = sim("calibrate", "--quick")
    assert code == 0
    assert f"continues: {measured} of {len(gpu.asked)} points are there from " in err
    assert len(set(gpu.asked)) == len(gpu.asked)
    assert out.endswith("next: sim calibrate show h200\n      sim run --gpu h200\n")
    assert "4.20 TB/s     4.80 TB/s    87 %" in out  # the copy speed that the synthetic GPU has
    assert re.search(r"composed steps +\d+ +[\d.]+ % +\d+ +[\d.]+ % +[\d.]+ %", out)
    assert find_profile("h200").path == own / "nvidia-h200-quick.json"
    code, out, _ = sim("run", "--gpu", "h200", "--model", "llama-3.1-8b", "--num-prompts", "3", "--no-plots")
    assert (code, "profile nvidia-h200-quick, measured, 20" in flat(out)) == (0, True)
    code, out, _ = sim("gpus")
    assert re.search(r"nvidia-h200-quick +h200 20\S+ [\d.]+ % +yours", out)
    assert re.search(r"nvidia-h200-quick +few points", out)


def test_fresh_forgets_what_a_stopped_one_has_measured(gpu, sim):
    gpu.stop_after = 60
    sim("calibrate", "--quick")
    before = len(gpu.asked)
    gpu.stop_after = None
    code, _, err = sim("calibrate", "--quick", "--fresh")
    assert (code, "continues" in err) == (0, False)
    assert len(gpu.asked) - before == len(set(gpu.asked))


def test_a_stopped_one_of_another_plan_or_version_is_refused_and_told_how_to_go_on(gpu, sim, own):
    gpu.stop_after = 10
    sim("calibrate", "--quick", "--out", "x.json")
    code, _, err = sim("calibrate", "--out", "x.json")
    assert code == 2
    assert (
        "of another plan (its points, quick or not); forget it with --fresh, or go on as it was begun" in err
    )
    gpu.device = replace(gpu.device, torch="2.12.0")
    code, _, err = sim("calibrate", "--quick", "--out", "x.json")
    assert (code, err.count("\n")) == (2, 1)
    assert "torch 2.11.0, here 2.12.0; forget it with --fresh" in err


def test_an_earlier_profile_is_kept_under_its_date_and_a_quick_one_stays_second(gpu, sim, own):
    written(own / "nvidia-h200.json", measured=example()["measured"] | {"date": "2026-01-01T00:00:00+00:00"})
    earlier = (own / "nvidia-h200.json").read_bytes()
    assert kept_as(own / "nvidia-h200.json").name == "nvidia-h200-2026-01-01.json"
    for _ in "ab":
        assert sim("calibrate", "--quick", "--out", own / "nvidia-h200.json")[0] == 0
    today = read_profile(own / "nvidia-h200.json").date
    names = {path.name for path in own.iterdir()}
    assert names == {"nvidia-h200.json", "nvidia-h200-2026-01-01.json", f"nvidia-h200-{today}.json"}
    assert (own / "nvidia-h200-2026-01-01.json").read_bytes() == earlier
    assert find_profile("h200").path.name == "nvidia-h200-2026-01-01.json"  # full; the newer ones are quick


def test_a_gpu_that_dies_is_an_error_and_the_good_profile_stays(gpu, sim, own):
    assert sim("calibrate", "--quick")[0] == 0
    good, done = (own / "nvidia-h200-quick.json").read_bytes(), len(gpu.asked)
    gpu.dies_after = done + 100
    code, out, err = sim("calibrate", "--quick")
    assert (code, out) == (2, "")
    assert re.search(r"error: no profile without the part \w+: \d+ of its \d+ points are missing, the", err)
    assert {path.name for path in own.iterdir()} == {
        "nvidia-h200-quick.json", "nvidia-h200-quick.json.journal",
    }  # fmt: skip
    assert (own / "nvidia-h200-quick.json").read_bytes() == good
    gpu.dies_after = None
    code, _, err = sim("calibrate", "--quick")
    assert (code, f"continues: 100 of {done} points are there from" in err) == (0, True)


def test_a_faulty_profile_says_so_and_stands_behind_a_good_one(gpu, sim, own):
    assert sim("calibrate", "--quick")[0] == 0
    gpu.slow = "composed"
    code, out, err = sim("calibrate", "--quick")
    assert code == 3
    assert "written to" in out
    assert re.fullmatch(
        r"faulty: composed steps are \d+.\d% off on average, more than 5%\n", err.splitlines(True)[-1]
    )
    faulty = read_profile(own / "nvidia-h200-quick.json")
    assert faulty.faults
    assert not find_profile("h200").faults
    assert find_profile("h200").path != faulty.path


def test_a_gpu_that_slowed_down_meanwhile_has_an_exit_code_of_its_own(gpu, sim, own):
    gpu.slows_after = 60
    code, _, err = sim("calibrate", "--quick")
    assert code == 4
    drifted, off = err.splitlines()[-2:]
    assert re.match(r"faulty: the GPU drifted: decode by 1\d.\d%, product by ", drifted)
    assert re.match(r"faulty: composed steps are \d+.\d% off", off)  # measured before it slowed down
    assert read_profile(own / "nvidia-h200-quick.json").faults


def test_a_profile_that_cannot_be_written_loses_nothing(gpu, sim, own, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("kvsim.kernels.calibration.earlier.write_profile", full)
        code, _, err = sim("calibrate", "--quick")
    assert code == 2
    assert "No space left on device; what was measured is kept: the same command continues" in err
    measured = len(gpu.asked)
    assert sim("calibrate", "--quick")[0] == 0
    assert len(gpu.asked) == measured


def test_a_name_is_the_profiles_and_its_files(gpu, sim, own):
    assert sim("calibrate", "--quick", "--name", "lab-3")[0] == 0
    assert find_profile("lab-3").name == "lab-3"
    assert (own / "lab-3.json").is_file()


def test_smaller_and_older_gpus_leave_out_what_they_cannot_do(gpu, sim):
    gpu.device = replace(gpu.device, name="NVIDIA A100-SXM4-40GB", memory_bytes=42 * 10**9, capability=(8, 0))
    gpu.stop_after = 0
    _, _, err = sim("calibrate")
    found = re.search(
        r"decode attention, (\d+) points that would not fit the memory, (\d+) points that need", flat(err)
    )
    assert int(found[1]) > 5 and int(found[2]) > 0
    assert "8 bits: compute capability 8.9" in flat(err)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--out x", "out must end with .json, as --gpu knows files by it, got x"),
        ("--out folder.json", "out must be a file, and folder.json is a directory"),
        ("--out notes.json", "notes.json is there and is no profile of a calibration: name another file"),
        ("--out notes.json/x.json", "the journal notes.json/x.json.journal cannot be written: "),
        ("--name ../x", "name must be made of letters, digits, dots, dashes and underscores, got '../x'"),
        ("--name l4", "name must not be that of another GPU, got 'l4': this is a h200"),
        ("--quick show h100", "--quick must be left out with calibrate show"),
    ],
)
def test_a_mistake_gets_one_line_before_anything_is_measured(gpu, sim, own, options, words):
    Path("folder.json").mkdir()
    Path("notes.json").write_text("[1]")
    code, out, err = sim("calibrate", *options.split())
    assert (code, out, gpu.asked, err.count("\n")) == (2, "", [], 1)
    assert err.startswith(f"error: {words}")
    assert Path("notes.json").read_text() == "[1]"


def test_without_a_gpu_it_is_said_what_to_do_instead(sim, monkeypatch):
    from kvsim.kernels.calibration import plan

    def none(interpret):
        raise NoGpuError("there is no GPU that torch can use")

    monkeypatch.setattr(plan, "found_device", none)
    assert sim("calibrate") == (
        2,
        "",
        "error: there is no GPU that torch can use: use a datasheet by name, as in sim run --gpu h200, or "
        "rehearse with --interpret\n",
    )


def test_without_torch_it_is_said_what_to_install():
    process = start("calibrate", first="sys.modules['torch'] = None; ")
    assert process.communicate(timeout=60) == (
        "",
        "error: torch is not installed: pip install '.[gpu]' in a clone of kvsim\n",
    )
    assert process.returncode == 2


def test_what_lies_there_already_is_kept_replaced_or_refused(tmp_path):
    assert kept_as(tmp_path / "none.json") is None
    assert kept_as(written(tmp_path / "toy.json", kind="rehearsal")) is None
    found = written(tmp_path / "mine.json")
    assert kept_as(found) == tmp_path / "mine-2026-01-01.json"
    written(tmp_path / "mine-2026-01-01.json")
    assert kept_as(found) == tmp_path / "mine-2026-01-01-2.json"
    (tmp_path / "analytic.json").write_text('{"kind": "analytic", "measured": {"date": "2026"}}')
    slashes = '{"kind": "calibrated", "measured": {"date": "2026/01/01"}}'
    (tmp_path / "slashes.json").write_text(slashes)
    for name in ("analytic.json", "slashes.json"):
        with pytest.raises(CalibrationError, match="is no profile of a calibration"):
            kept_as(tmp_path / name)


# -- sim calibrate show ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    pytest.importorskip("triton", reason="triton is not installed: pip install -e .[test]")
    return synthetic_profile(tmp_path_factory.mktemp("profile") / "synthetic.json")


def test_a_profile_is_shown_with_its_own_numbers(sim):
    content = example()
    decode, sampling = content["parts"]["decode"], content["parts"]["sampling"]
    decode["form"] = {"t0_s": 4e-6, "bandwidth_bytes_per_s": 4.3e12, "work_per_s": 1.2e6, "p": 3}
    decode["tables"][0]["ratio"][0][0], decode["tables"][0]["ratio"][-1][-1] = 0.5, 2.0
    decode["error"] = {
        "fitted": {"points": 150, "mean": 0.0, "median": 0.0, "worst": 0.0},
        "held_out": {"points": 43, "mean": 0.0312, "median": 0.02, "worst": 0.1149},
    }
    sampling["form"] = {"t0_s": 25e-6, "bandwidth_bytes_per_s": 3e11, "work_per_s": None, "p": 1}
    point = {"x": {"what": "decode 64"}, "role": "held_out", "median_s": 410e-6, "p10_s": 405e-6}
    point |= {"p90_s": 413.2e-6, "launches": 16, "predicted_s": 400e-6, "consists_of": {}}
    error = {"points": 1, "mean": 0.0244, "median": 0.0244, "worst": 0.0244}
    content |= {
        "ceilings": {"copy_bytes_per_s": 4.3e12, "read_bytes_per_s": 4.4e12, "matrix_flops_per_s": 7.9e14},
        "limits": {"bandwidth_bytes_per_s": 4.8e12, "flops_per_s": 9.89e14},
        "launch": {"eager_s": 6e-6, "graph_s": 1.5e-6, "replay_s": 12e-6},
        "composed": {"points": [point], "error": error},
    }
    Path("mine.json").write_text(json.dumps(content))
    code, out, err = sim("calibrate", "show", "mine.json")
    assert (code, err) == (0, "")
    assert out.startswith("example: rehearsal, not a measurement, 2026-01-01\n")
    for line in (
        r"copy, read \+ written +4.30 TB/s +4.80 TB/s +90 %",
        "matrix product, 16 bit +790 TFLOP/s +989 TFLOP/s +80 %",
        "starting a kernel, from the host +6.00 us",
        "a kernel in a CUDA graph +1.50 us",
        "starting a CUDA graph +12.0 us",
        r"decode attention +4.00 us +4.30 TB/s +833 ns/tile +p=3 +0.50 to 2.00",
        "sampling +25.0 us +300 GB/s +- +[0-9]",
        r"decode attention +193 .* 43 +3.1 % +11.5 %",
        "composed steps +1 +1.0 % +1 +2.4 % +2.4 %",
        "decode 64 +410 us +400 us +-2.4 %",
    ):
        assert re.search(line, out), line
    assert out.endswith("calibration-mine.png\n")
    assert Path("calibration-mine.png").is_file()


def test_a_profile_of_every_part_is_shown_in_80_columns(synthetic, sim):
    code, out, _ = sim("calibrate", "show", synthetic, "--no-plots")
    assert code == 0
    assert "…" not in out
    assert not list(Path().glob("*.png"))
    fit = fit_of(read_profile(synthetic))
    assert all(len(re.findall(rf"^{part.title}  +[\d.]", out, re.MULTILINE)) == 2 for part in fit.parts)
    assert re.search(r"^layer 4,096 wide, 16/1 heads of 128 *\n128 experts, 8 bits *$", out, re.MULTILINE)
    assert re.search("clocks +SM 1,980 MHz, 55 °C, 420 W", out)
    layers = {line for line in out.splitlines() if line.startswith("layer ")}
    assert len(layers) >= 3
    assert re.search(r"^  40 x 1,000 lognormal \+ prompt 470 after 1,000 +[\d.]+ us", out, re.MULTILINE)


def test_names_of_gpus_find_profiles_rehearsals_and_datasheets(sim, own):
    assert sim("calibrate", "show", "h100-pcie")[1].startswith("h100-pcie: analytic, nothing is measured\n")
    assert sim("calibrate", "show", "h200")[1].startswith("h200-vllm: measured elsewhere, by ai-dynamo/")
    written(own / "toy.json", kind="rehearsal", name="toy", gpu=None)
    assert sim("calibrate", "show", "toy", "--no-plots")[1].startswith("toy: rehearsal, not a measurement")
    written(own / "mine.json", name="mine")
    out = sim("calibrate", "show", "H200", "--no-plots")[1]
    assert out.startswith("mine: measured, 2026-01-01\n")
    assert re.search("^used by +--gpu h200 *$", out, re.MULTILINE)


@pytest.mark.parametrize("profile", ["a100-40gb-sosp23", str(ROOT / "sim/profiles/a100-40gb-sosp23.json")])
def test_an_analytic_profile_is_shown_with_its_sources_and_no_picture(sim, profile):
    code, out, err = sim("calibrate", "show", profile)
    assert (code, err) == (0, "")
    assert out.startswith("a100-40gb-sosp23: analytic, kvsim measured nothing\n")
    assert "nothing to draw. Use it: --cost a100-40gb-sosp23." in flat(out)
    assert "arXiv 2309.06180" in flat(out) and "26.24 ms" in out
    assert not list(Path().iterdir())


def changed(change):
    content = example()
    change(content)
    return json.dumps(content)


BAD = {
    "not json": ("{", "is not valid JSON: Expecting property name"),
    "another file": ('{"name": "x"}', "is not one of sim calibrate"),
    "newer": (changed(lambda c: c.update(format=99)), "this kvsim reads 1: a newer kvsim wrote it"),
    "no points": (changed(lambda c: c["parts"]["decode"].pop("points")), "is damaged: it lacks 'points'"),
    "no median": (
        changed(lambda c: c["parts"]["decode"]["points"][0].pop("median_s")),
        "is damaged: it lacks 'median_s'",
    ),
    "a text": (
        changed(lambda c: c["parts"]["decode"]["points"][0].update(median_s="fast")),
        "is damaged: 'fast' where a number must be",
    ),
    "a negative time": (
        changed(lambda c: c["composed"]["points"][0].update(p10_s=-1)),
        "is damaged: -1 where a positive number must be",
    ),
    "no limits": (changed(lambda c: c.pop("limits")), "is damaged: it lacks 'limits'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gets_one_line(sim, name):
    text, words = BAD[name]
    Path("bad.json").write_text(text)
    code, out, err = sim("calibrate", "show", "bad.json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: profile bad.json ") and words in err


def test_showing_needs_neither_torch_nor_kernels():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from kvsim import cli; cli.main(); "
        "sys.exit(str({'torch', 'triton', 'kernels'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, "calibrate", "show", str(EXAMPLE), "--no-plots"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stderr == "set()\n"


# -- the picture ----------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_the_picture_exists_in_every_style_and_is_not_blank(synthetic, sim, style):
    code, out, err = sim(
        "calibrate", "show", synthetic, "--style", style, "--format", "png", "--out", "drawn"
    )
    assert (code, err) == (0, "")
    assert out.endswith("drawn/calibration-synthetic.png\n")
    with Image.open("drawn/calibration-synthetic.png") as picture:
        colours = picture.convert("RGBA").resize((400, 400)).getcolors(400 * 400)
    ink = sum(number for number, colour in colours if number < 400 * 400 / 4)
    assert ink > 0.02 * 400 * 400


def test_on_paper_it_is_a_pdf_and_the_same_twice(sim):
    for out in "ab":
        assert sim("calibrate", "show", EXAMPLE, "--style", "paper", "--out", out)[0] == 0
    name = "calibration-calibrated-example.pdf"
    assert Path("a", name).read_bytes() == Path("b", name).read_bytes()


def test_dots_are_what_was_measured_lines_the_form_and_errors_those_of_the_profile(synthetic):
    fit = fit_of(read_profile(synthetic))
    figure = calibration.calibration(fit, SCREEN)
    panels = {axes.get_title(): axes for axes in figure.get_axes() if axes.get_visible()}
    sampling = next(part for part in fit.parts if part.name == "sampling")
    line, dots = panels["sampling"].get_lines()[:2]
    points = sorted(sampling.main, key=lambda one: one.place["bytes"])
    assert list(line.get_ydata()) == [one.form_s for one in points]
    assert list(dots.get_ydata()) == [one.median_s for one in points]
    named = [text.get_text() for text in panels["decode attention"].get_legend().get_texts()]
    assert named == ["1", "512", "32,768"], "a line for each number of sequences, along all contexts"
    shown = [
        y
        for container in panels["composed steps: predicted / measured"].containers
        for y in container[0].get_ydata()
    ]
    assert sorted(shown) == sorted(one.predicted_s / one.median_s for one in fit.composed)
    rows = [line for line in panels["held out: predicted / measured"].get_lines() if line.get_marker() == "o"]
    assert len(rows) == sum(bool(part.held_out) for part in fit.parts)
    assert "no measurement" in calibration.headline(fit)


def test_the_error_of_the_form_alone_is_that_of_the_main_grid_and_the_others_are_those_stated(synthetic):
    fit, content = fit_of(read_profile(synthetic)), json.loads(synthetic.read_text())
    for part in fit.parts:
        stated = content["parts"][part.name]["error"]
        own = Error.of((one.predicted_s, one.median_s) for one in part.held_out)
        assert (own.points, part.count) == (stated["held_out"]["points"], len(part.points))
        assert own.mean == pytest.approx(stated["held_out"]["mean"], abs=1e-4)
        assert part.held_out_error.worst == stated["held_out"]["worst"]
    part = next(part for part in fit.parts if part.name == "sampling")
    form, rows = part.form, content["parts"]["sampling"]["points"]
    form_s = [form["t0_s"] + row["bytes"] / form["bandwidth_bytes_per_s"] for row in rows]
    errors = [
        abs(seconds / row["median_s"] - 1)
        for seconds, row in zip(form_s, rows, strict=True)
        if row["role"] == "grid"
    ]
    assert part.form_error.points == len(errors) > 3
    assert part.form_error.mean == pytest.approx(sum(errors) / len(errors))


def test_quantities_in_words():
    assert [duration(each) for each in (3.256e-6, 9.999e-4, 9.9996e-4, 2.5, 8e-10)] == [
        "3.26 us", "1.00 ms", "1.00 ms", "2.50 s", "0.800 ns"
    ]  # fmt: skip
    assert [span(each) for each in (0.2, 59.4, 60, 281.4)] == ["1 s", "59 s", "1 min 00 s", "4 min 41 s"]
    assert [rate(each, "B/s") for each in (4.03e12, 52e9, 10)] == ["4.03 TB/s", "52.0 GB/s", "10.0 B/s"]
    assert [size(each) for each in (4096, 1.5 * 2**20, 2**27, 100)] == [
        "4 KiB",
        "1.5 MiB",
        "128 MiB",
        "100 B",
    ]
