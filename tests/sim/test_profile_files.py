"""Profiles as files: found by path, by name, by GPU; newest first; damaged ones named in one line."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from support.profiles import EXAMPLE, example, settings, written

from kvsim import cli
from kvsim.sim.cost.profile_files import directory, find_profile, gpu_and_cost, profile_files, read_profile
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_named, model_named

SMALL = ("--model", "llama-3.1-8b", "--num-prompts", "20", "--request-rate", "inf", "--no-plots")


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """The user's own directory, empty, with nothing around it and no shipped profiles."""
    monkeypatch.setattr("kvsim.sim.cost.profile_files._shipped", lambda gpu=None: iter(()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVSIM_PROFILES", str(tmp_path / "own"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path / "own"


def dated(date):
    return {"measured": example()["measured"] | {"date": f"{date}T12:00:00+00:00"}}


def test_the_directory_is_the_environments_else_the_platforms(monkeypatch, own):
    assert directory() == own
    monkeypatch.delenv("KVSIM_PROFILES")
    assert directory().parts[-2:] == ("kvsim", "profiles")


def test_a_gpu_has_its_newest_profile_and_a_name_finds_its_own(own):
    old = written(own / "old.json", name="old", **dated("2026-01-01"))
    new = written(own / "new.json", name="new", **dated("2026-03-01"))
    written(own / "middle.json", name="middle", **dated("2026-02-01"))
    assert find_profile("h200").path == find_profile("H200").path == new
    assert find_profile("old").path == find_profile(str(old)).path == old
    assert find_profile("h100") is None


def test_with_a_profile_the_gpu_is_calibrated_and_roofline_can_be_forced(own):
    assert gpu_and_cost("h200", None) == (gpu_named("h200"), "roofline", None)
    path = written(own / "mine.json", name="mine")
    gpu, cost, profile = gpu_and_cost("h200", None)
    assert (gpu, cost) == (gpu_named("h200"), "calibrated")
    assert profile == read_profile(path).settings()
    assert gpu_and_cost("mine", "roofline") == (gpu_named("h200"), "roofline", None)
    assert gpu_and_cost("h200", "constant:1") == (gpu_named("h200"), "constant:1", None)


def test_cost_calibrated_demands_a_profile():
    with pytest.raises(KvsimError, match=r"gpu 'h200', and there is none: measure one with sim calibrate"):
        gpu_and_cost("h200", "calibrated")


def test_a_rehearsal_is_found_by_its_path_alone(own):
    path = written(own / "h200.json", kind="rehearsal", name="h200")
    assert gpu_and_cost("h100", None)[1] == "roofline"
    assert find_profile(str(path)).rehearsal
    with pytest.raises(KvsimError, match="is a rehearsal, not a measurement: name it by its path"):
        find_profile("h200")


def test_a_gpu_that_is_not_built_in_is_as_measured(own):
    written(own / "new.json", name="new-gpu", gpu=None)
    gpu, cost, _ = gpu_and_cost("new-gpu", None)
    assert (gpu.memory_bytes, cost) == (150_000_000_000, "calibrated")
    assert gpu.bandwidth_bytes_per_s * gpu.bandwidth_efficiency == 4.3e12
    with pytest.raises(KvsimError, match=r"did you mean 'new-gpu'"):
        gpu_and_cost("new-gp", None)


def damaged(change):
    content = example()
    change(content)
    return json.dumps(content)


DAMAGES = {
    "no json": ("{", "is not valid JSON: Expecting property name"),
    "a list": ("[]", "is not one of sim calibrate: its kind is not calibrated, elsewhere or rehearsal"),
    "another kind": ('{"kind": "analytic"}', "is not one of sim calibrate"),
    "another format": (damaged(lambda c: c.update(format=9)), "has format 9, this kvsim reads 1"),
    "no parts": (damaged(lambda c: c.pop("parts")), "is damaged: it lacks 'parts'"),
    "a part less": (damaged(lambda c: c["parts"].pop("decode")), "it lacks the parts decode"),
    "a negative time": (
        damaged(lambda c: c["parts"]["product"]["form"].update(t0_s=-1)),
        "is damaged: -1 where a positive number must be",
    ),
    "a text": (damaged(lambda c: c["launch"].update(eager_s="fast")), "is damaged: "),
    "a hole": (
        damaged(lambda c: c["parts"]["sampling"]["tables"][0]["ratio"].pop()),
        "axis bytes has 5 values and 4 ratios",
    ),
    "another order": (
        damaged(lambda c: c["parts"]["sampling"]["tables"][0]["axes"][0]["values"].reverse()),
        "the values of axis bytes must rise",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_or_foreign_file_gets_one_line(name, own, capsys):
    text, words = DAMAGES[name]
    own.mkdir()
    (own / "mine.json").write_text(text)
    with pytest.raises(KvsimError) as error:
        read_profile(own / "mine.json")
    assert words in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(KvsimError):
        find_profile("mine")
    assert find_profile("h200") is None  # others are not bothered
    assert isinstance(profile_files()[0], KvsimError)
    assert cli.main(["gpus"]) == 0
    assert "damaged" in capsys.readouterr().out


def test_the_settings_hold_what_a_run_needs_and_no_raw_point():
    found = settings()
    assert "points" not in json.dumps(found)
    assert json.loads(json.dumps(found)) == found
    assert len(found["sha256"]) == 64
    scenario = Deployment(
        model=model_named("opt-13b"), gpu=gpu_named("h200"), engine=EngineConfig(), profile=found
    )
    assert asdict(scenario)["profile"] == found


# -- from outside -------------------------------------------------------------------------------------


def ran(capsys, *arguments):
    assert cli.main(["run", *SMALL, *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_a_run_says_which_profile_and_from_when_and_can_be_repeated_without_it(own, capsys):
    path = written(own / "mine.json", name="mine", **dated("2026-03-01"))
    said = ran(capsys, "--gpu", "h200", "--out", "one")
    assert "calibrated: llama-3.1-8b on h200; profile mine, measured, 2026-03-01" in " ".join(said.split())
    path.unlink()
    assert cli.main(["run", "--config", "one/config.json", "--out", "two", "--no-plots", "-q"]) == 0
    for name in ("config.json", "requests.parquet", "timeline.parquet"):
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes(), name
    one, two = (json.loads(Path(name, "summary.json").read_text()) for name in ("one", "two"))
    assert one.pop("simulation") and two.pop("simulation") and one == two
    assert 0 <= one["cost"]["extrapolated_share"] <= 1


def test_without_a_profile_a_run_says_that_it_is_analytic(capsys):
    assert "roofline, analytic: llama-3.1-8b on h200" in ran(capsys, "--gpu", "h200")


def test_a_rehearsal_says_so_wherever_its_times_are_told(capsys):
    said = " ".join(ran(capsys, "--gpu", str(EXAMPLE), "--out", "one").split())
    assert "profile example, rehearsal, not a measurement, 2026-01-01" in said
    assert "Step times are a rehearsal, not a measurement: they say nothing about any GPU." in said
    summary = json.loads(Path("one/summary.json").read_text())
    assert "rehearsal, not a measurement" in summary["cost"]["source"]


def test_what_lay_outside_is_told_with_its_share(own, capsys):
    content = example()
    content["parts"]["decode"]["range"]["context_tokens"] = [300, 400]
    written(own / "mine.json", **content | {"kind": "calibrated"})
    said = " ".join(ran(capsys, "--gpu", "h200", "--out", "one").split())
    share = json.loads(Path("one/summary.json").read_text())["cost"]["extrapolated_share"]
    assert 0 < share < 1
    assert f"{100 * share:.1f} % of the time extrapolated; not validated" in said
    assert "(measured: 300 to 400)" in said


def test_both_modes_agree_on_what_lay_outside(own, capsys):
    written(own / "mine.json")
    ran(capsys, "--gpu", "h200", "--out", "fast")
    ran(capsys, "--gpu", "h200", "--out", "slow", "--step-mode")
    fast, slow = (json.loads(Path(name, "summary.json").read_text()) for name in ("fast", "slow"))
    assert fast.pop("simulation") and slow.pop("simulation") and fast == slow


def test_gpus_lists_profiles_with_what_stands_behind_them(own, capsys):
    written(own / "mine.json", name="mine", **dated("2026-03-01"))
    written(own / "toy.json", name="toy", kind="rehearsal")
    assert cli.main(["gpus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (mine,) = (line.split() for line in lines if line.startswith("mine "))
    assert mine[:6] == ["mine", "h200", "2026-03-01", "2.4", "%", "yours"]
    assert "torch" in mine
    assert any(line.startswith("toy ") and "rehearsal" in line for line in lines)
