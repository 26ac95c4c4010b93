"""Goals from the command and from Python: what they add to a run, and that they change nothing else."""

import json

import numpy as np
import pytest

import kvsim
from kvsim.cli import main
from kvsim.sim.record.summary import LimitMet, PerGpu, Price, Slo, _hints

SMALL = {"num_prompts": 60, "request_rate": 4.0}
SLO = "ttft:p90=0.2s,e2e=10s"


@pytest.fixture(scope="module")
def run():
    return kvsim.simulate(**SMALL, slo=SLO, gpu_price=2.5)


def test_goals_change_nothing_but_what_they_add(run):
    plain = kvsim.simulate(**SMALL)
    added = {"slo", "per_gpu", "price"}
    ours, theirs = ({k: v for k, v in each.summary.items() if k != "simulation"} for each in (run, plain))
    assert {name: value for name, value in ours.items() if name not in added} == theirs
    assert {name: value for name, value in run.config.items() if name != "goals"} == plain.config
    assert run.requests.equals(plain.requests)


def test_the_numbers_are_those_of_the_requests(run):
    requests, slo = run.requests, run.summary.slo
    good = (requests.e2e_s <= 10).sum()
    assert 0 < good < len(requests)
    assert slo.attained_share == good / len(requests)
    assert slo.goodput_requests_per_s == good / run.summary.duration_s
    assert slo["by_limit"]["ttft:p90"]["measured_s"] == np.quantile(requests.ttft_s, 0.9)
    tokens_per_s = requests.output_tokens.sum() / run.summary.duration_s
    assert run.summary.price.per_million_output_tokens == pytest.approx(2.5 / 3600 / tokens_per_s * 1e6)


@pytest.mark.parametrize(("part", "kind"), [("slo", Slo), ("per_gpu", PerGpu), ("price", Price)])
def test_every_name_is_declared(run, part, kind):
    assert type(getattr(run.summary, part)) is kind
    assert set(_hints(kind)) == set(run.summary[part])
    assert set(_hints(LimitMet)) == set(run.summary["slo"]["by_limit"]["e2e"])


def test_several_gpus_share_the_goodput():
    several = kvsim.simulate(**SMALL, slo=SLO, gpu="h100", tensor_parallel_size=2, replicas=2)
    assert several.summary.per_gpu.gpus == 4
    slo = several.summary.slo
    assert slo.goodput_requests_per_s_per_gpu == slo.goodput_requests_per_s / 4


@pytest.mark.slow
def test_a_config_repeats_the_goals(tmp_path, capsys):
    flags = ["--num-prompts", "40", "--slo", SLO, "--gpu-price", "2", "--no-plots"]
    assert main(["run", *flags, "--out", str(tmp_path / "one")]) == 0
    assert main(["run", "--config", str(tmp_path / "one/config.json"), "--out", str(tmp_path / "two")]) == 0
    first, second = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("one", "two"))
    assert first["slo"] == second["slo"] and first["price"] == second["price"]
    assert main(["run", "--config", str(tmp_path / "one/config.json"), "--slo", SLO]) == 2
    assert "leave out --slo" in capsys.readouterr().err


@pytest.mark.slow
def test_the_terminal_and_the_page_say_whether_they_were_met(tmp_path, capsys):
    flags = ["--num-prompts", "40", "--request-rate", "inf", "--slo", SLO, "--gpu-price", "2"]
    assert main(["run", *flags, "--no-plots", "--out", str(tmp_path / "one")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "SLO missed: TTFT p90" in said and "A million tokens costs" in said
    assert main(["report", str(tmp_path / "one")]) == 0
    page = (tmp_path / "one/report.html").read_text()
    assert "SLO missed: TTFT p90" in page and "Requests within the SLO" in page
    assert main(["compare", *flags, "--seeds", "2", "--jobs", "1", "--no-out"]) == 0
    assert "goodput, requests/s" in capsys.readouterr().out


@pytest.mark.slow
def test_the_limits_are_lines_in_the_figures(run):
    figure = run.plot("latency")
    ttft, tpot, e2e, _ = figure.axes
    assert [text.get_text() for text in ttft.texts] == ["SLO p90"]
    assert [text.get_text() for text in e2e.texts] == ["SLO"]
    assert not tpot.texts
    both = kvsim.compare(["paged", "paged"], num_prompts=20, slo=SLO)
    faster = kvsim.simulate(num_prompts=20, request_rate=4.0, slo=SLO)
    curve = kvsim.Comparison([both[0], faster]).plot("throughput", latency="ttft:p90")
    assert "SLO p90" in [text.get_text() for text in curve.axes[0].texts]


def test_a_wrong_goal_is_one_line(capsys):
    assert main(["run", "--slo", "ttft=5", "--no-out"]) == 2
    assert capsys.readouterr().err == "error: slo must give ttft in s, ms or us, got 'ttft=5'\n"
    assert main(["run", "--gpu", "h100", "--gpu-price", "l40s=2", "--no-out"]) == 2
    assert capsys.readouterr().err.startswith("error: gpu_price must name h100")
