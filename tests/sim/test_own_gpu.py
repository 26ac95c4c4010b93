"""A user's own GPU in a file: TOML or JSON, told from a profile by its content, and errors for mistakes."""

import json
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from support.profiles import example, written

from kvsim import cli
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import GIB, gpu_named, gpu_names
from kvsim.sim.models.own_gpu import FIELDS, PEAKS, read_own_gpu

MINE = {
    "memory_gib": 48,
    "bandwidth_gb_per_s": 960,
    "bf16_tflops": 250,
    "pcie_gb_per_s": 32,
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty directory, with no other profiles."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVSIM_PROFILES", str(tmp_path / "own"))


def toml(entry):
    Path("my-gpu.toml").write_text("".join(f"{key} = {json.dumps(entry[key])}\n" for key in entry))
    return "my-gpu.toml"


def complaint(text, name="x.toml"):
    Path(name).write_text(text)
    with pytest.raises(KvsimError) as error:
        gpu_and_cost(name, None)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_four_numbers_are_a_gpu_named_after_its_file():
    gpu, cost, profile = gpu_and_cost(toml(MINE), None)
    assert (cost, profile, gpu.name, gpu.source) == ("roofline", None, "my-gpu", "file my-gpu.toml")
    assert gpu.memory_bytes == 48 * GIB
    assert (gpu.bandwidth_bytes_per_s, gpu.flops_per_s, gpu.pcie_bytes_per_s) == (960e9, 250e12, 32e9)
    assert gpu.link_bytes_per_s is None
    assert gpu.bandwidth_efficiency == gpu_named("h100").bandwidth_efficiency


def test_a_slow_device_has_less_than_a_teraflop_a_second():
    slow = MINE | {"bf16_tflops": 0.35}
    assert gpu_and_cost(toml(slow), None)[0].flops_per_s == 350e9
    with pytest.raises(KvsimError, match=r"bf16_tflops must be a number from 0\.001 to"):
        gpu_and_cost(toml(MINE | {"bf16_tflops": 1e-4}), None)


def test_json_says_the_same_whatever_the_file_is_called():
    full = MINE | {"name": "lab", "link_gb_per_s": 56, "source": "a data sheet", "kernel_overhead_us": 5}
    Path("lab.txt").write_text(json.dumps(full))
    Path("sub").mkdir()
    Path("sub/lab").write_text(json.dumps(full))
    found = [gpu_and_cost(name, None)[0] for name in (toml(full), "./lab.txt", "sub/lab")]
    assert found[0] == found[1] == found[2]
    assert (found[0].name, found[0].source) == ("lab", "a data sheet")
    assert (found[0].link_bytes_per_s, found[0].kernel_overhead_s) == (56e9, 5e-6)


def test_an_entry_of_the_built_in_table_is_such_a_file_with_its_heading():
    text = files("kvsim.sim.models").joinpath("gpus.toml").read_text(encoding="utf-8")
    for name, entry in tomllib.loads(text).items():
        Path("one.toml").write_text(
            f"[{name}]\n" + "".join(f"{key} = {json.dumps(entry[key])}\n" for key in entry)
        )
        assert read_own_gpu(Path("one.toml")) == gpu_named(name)
    assert len(gpu_names()) == len(tomllib.loads(text))


def test_a_profile_stays_a_profile_and_a_gpu_that_is_none_has_no_profile():
    path = written(Path("own") / "mine.json", name="mine")
    assert read_own_gpu(path) is None
    assert gpu_and_cost(str(path), None)[1] == "calibrated"
    assert "kind" in example()
    with pytest.raises(KvsimError, match=r"needs a measured profile, and my-gpu.toml holds a datasheet's"):
        gpu_and_cost(toml(MINE), "calibrated")


MISTAKES = {
    "a slip": ({"bf16_tflop": 3}, "field 'bf16_tflop' is unknown; did you mean 'bf16_tflops'?"),
    "another unit's name": ({"memory_gb": 48}, "field 'memory_gb' is unknown; did you mean 'memory_gib'?"),
    "terabytes": ({"bandwidth_gb_per_s": 3.35}, "bandwidth_gb_per_s must be a number from 10 to 200,000 ("),
    "bytes": ({"memory_gib": 51539607552}, "memory_gib must be a number from 1 to 4,096 (GiB), got 5"),
    "a text": ({"pcie_gb_per_s": "32"}, "pcie_gb_per_s must be a number from 1 to 10,000 (GB/s), got '32'"),
    "a switch": ({"pcie_gb_per_s": True}, "pcie_gb_per_s must be a number from 1 to 10,000 (GB/s), got True"),
    "two peaks": ({"fp16_tflops": 250}, "bf16_tflops must be there, or fp16_tflops if there is no BF16"),
    "a number for a name": ({"name": 5}, "name must be a text, got 5"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_file_field_and_what_is_allowed(name):
    change, words = MISTAKES[name]
    found = complaint(json.dumps(MINE | change), "x.json")
    assert found.startswith(f"gpu 'x.json': {words}")


@pytest.mark.parametrize("field", [*MINE])
def test_what_is_missing_is_named(field):
    found = complaint(json.dumps({key: MINE[key] for key in MINE if key != field}), "x.json")
    assert found.startswith(f"gpu 'x.json': {field} must be there")


def test_a_file_that_is_none_is_refused():
    assert complaint("memory_gib: 48").startswith("gpu 'x.toml' is no valid TOML: ")
    assert complaint("{", "x.json").startswith("profile x.json is not valid JSON: ")
    with pytest.raises(KvsimError, match=r"gpu 'none.toml' cannot be read: No such file"):
        gpu_and_cost("none.toml", None)


def test_a_run_on_it_says_whose_numbers_they_are_and_repeats_without_the_file(capsys):
    small = ["--num-prompts", "20", "--no-plots", "-q"]
    toml(MINE)
    assert cli.main(["run", "--gpu", "my-gpu.toml", "--out", "first", *small]) == 0
    Path("my-gpu.toml").unlink()
    assert cli.main(["run", "--config", "first/config.json", "--out", "second", "--no-plots", "-q"]) == 0
    assert Path("first/requests.parquet").read_bytes() == Path("second/requests.parquet").read_bytes()
    source = json.loads(Path("second/summary.json").read_text())["cost"]["source"]
    assert source == "roofline, analytic: opt-13b on my-gpu (file my-gpu.toml)"


def test_calibrate_shows_its_numbers(capsys):
    assert cli.main(["calibrate", "show", toml(MINE)]) == 0
    assert "my-gpu: analytic, nothing is measured" in capsys.readouterr().out


def test_peaks_are_dense_and_of_16_bit():
    """H100 SXM: 1,979 TFLOP/s is its peak with sparsity."""
    assert set(PEAKS) < FIELDS.keys()
    assert gpu_named("h100").flops_per_s == 989e12
    assert gpu_named("t4").source.endswith("FP16's peak, as it has no BF16")
