"""Pools on the command line, in the file of a sweep, and in what is written of a run."""

import csv
import json

import pytest

import kvsim
from kvsim import cli
from kvsim.reports.rundir.run import read_run, read_runs

FLEET = ["--model", "llama-3.1-8b", "--num-prompts", "40", "--request-rate", "20"]
POOLS = ["--pool", "both:1:gpu=h100,tp=2", "--pool", "both:2:gpu=l40s"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("pools") / "run"
    assert cli.main(["run", *FLEET, *POOLS, "--gpu-price", "3", "--no-plots", "--out", str(directory)]) == 0
    return directory


def test_pool_is_given_once_for_each(written, capsys):
    summary = json.loads((written / "summary.json").read_text())
    assert [(pool["name"], pool["replicas"]) for pool in summary["pools"]] == [("h100 tp2", 1), ("l40s", 2)]
    same = kvsim.simulate(
        model="llama-3.1-8b", num_prompts=40, request_rate=20, pool=POOLS[1::2], gpu_price=3.0
    )
    assert same.summary["latency"] == summary["latency"]
    again = ["run", "--config", str(written / "config.json"), "--no-out"]
    assert cli.main(again) == 0
    said = capsys.readouterr().out
    assert "pool (p99 in ms)" in said
    assert "h100 tp2" in said
    assert "of each of 3 replicas, on average" in said


def test_a_replica_of_a_written_fleet_has_the_server_of_its_pool(written):
    gpus = [run.config["scenario"]["gpu"]["name"] for run in read_runs(written)[0].replicas]
    assert gpus == ["h100", "l40s", "l40s"]
    assert read_run(written).server_of(1).label == "paged, replica 1, l40s"


def test_explain_repeats_the_fleet_and_names_the_pool(written, capsys):
    assert cli.main(["explain", str(written), "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == "paged, replica 1, l40s"


def test_a_sweep_compares_fleets_that_semicolons_part(tmp_path, capsys):
    fleets = "both:1:gpu=h100,tp=2 both:2:gpu=l40s; both:3:gpu=l40s"
    out = tmp_path / "sweep"
    arguments = ["sweep", *FLEET, "--pool", fleets, "--jobs", "1", "--no-plots", "--out", str(out)]
    assert cli.main(arguments) == 0
    capsys.readouterr()
    assert cli.main(["table", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "both:3:gpu=l40s" in lines[2]


def test_a_comparison_of_allocators_takes_no_pools(capsys):
    assert cli.main(["compare", "--allocator", "paged,contiguous", *FLEET, *POOLS, "--no-out"]) == 2
    assert "pool must be left out of a comparison of allocators" in capsys.readouterr().err


def test_damaged_pools_are_refused_in_one_line(written, tmp_path, capsys):
    config = json.loads((written / "config.json").read_text())
    for damage in (3, [3], [{"replicas": 1}], [{**config["pools"][0], "replicas": "x"}]):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**config, "pools": damage}))
        assert cli.main(["run", "--config", str(path), "--no-out"]) == 2
        said = capsys.readouterr().err.strip()
        assert "\n" not in said
        assert "config" in said or "pools" in said, said


def test_a_search_prices_each_fleet_by_its_own_gpus_and_says_what_binds(tmp_path, capsys):
    fleets = "both:2:gpu=l40s;prefill:1:gpu=h100 decode:1:gpu=l40s"
    flags = ["--model", "llama-3.1-8b", "--cost", "roofline", "--pool", fleets, "--max-num-seqs", "8"]
    asked = ["--slo", "ttft:p90=1s,tpot:p90=50ms", "--gpu-price", "h100=3,l40s=1", "--num-prompts", "40"]
    short = [
        "--seeds",
        "1",
        "--tolerance",
        "0.4",
        "--jobs",
        "1",
        "--no-plots",
        "--out",
        str(tmp_path / "found"),
    ]
    assert cli.main(["capacity", *flags, *asked, *short]) == 0
    assert "per thousand" in capsys.readouterr().out
    alike, apart = read_rows(tmp_path / "found" / "table.csv")
    for row, per_hour in ((alike, 2), (apart, 4)):
        price = per_hour / 3600 / float(row["requests_per_s"]) * 1000
        assert float(row["price_per_thousand_requests"]) == pytest.approx(price)
    assert (alike["bound_by"], apart["bound_by"] in {"prefill", "link", "decode"}) == ("", True)


def test_each_pool_is_told_with_what_it_took(capsys):
    pools = ["--pool", "prefill:2", "--pool", "decode:2"]
    policies = ["--scale", "prefill=schedule:0=1", "--scale", "decode=threshold:queue=9"]
    assert cli.main(["run", *FLEET, "--gpu", "h100", *pools, *policies, "--no-out"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2.00 replicas on average (1.00 h100 prefill, 1.00 h100 decode), 0 started, 0 drained" in said


def read_rows(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "options",
    [
        ("--pool", "prefill:2", "--pool", "decode:2", "--fail", "replica=0:at=1"),
        ("--pool", "both:2", "--pool", "both:2:gpu=h100", "--scale", "schedule:0=2,1=4"),
        ("--pool", "prefill:2", "--pool", "decode:2", "--scale", "decode=slo:tpot=0.1"),
    ],
)
def test_pools_that_die_or_are_scaled_get_a_directory_of_their_own(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["run", *FLEET, "--gpu", "l40s", *options, "--no-plots"]
    assert cli.main(asked) == 0
    [written] = (tmp_path / "runs").iterdir()
    assert options[-2].strip("-") in written.name
