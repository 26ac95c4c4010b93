"""Measured servers beside simulated ones: shipped ones are read and held to, impossible ones refused."""

import json
from dataclasses import replace

import numpy as np
import pytest

import kvsim.sim.validate as points_module
from kvsim import cli
from kvsim.reports.truth import validate
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.run import prepare
from kvsim.sim.validate import (
    Point,
    against_physics,
    compare_point,
    compare_run,
    deployment_of,
    measured,
    points,
    runs,
    sources,
    workload_of,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def nobody_has_calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("KVSIM_PROFILES", str(tmp_path / "none"))


def point(**facts):
    usual = {
        "name": "one",
        "model": "meta-llama/Llama-3.1-70B",
        "gpu": "h200_sxm",
        "precision": "fp8",
        "version": "0.19.0",
        "tp": 4,
        "dp": 1,
        "ep": 1,
        "input_tokens": 1024,
        "output_tokens": 128,
        "clients": 4,
        "ttft_s": 0.1,
        "tpot_s": 0.012,
    }
    return Point(**usual | facts)


def off(compared, what, statistic="mean"):
    return next(each.off for each in compared if (each.what, each.statistic) == (what, statistic))


def test_a_4090_is_met_within_2_percent_request_by_request():
    compared, columns = compare_run(next(run for run in runs() if run.name.startswith("rtx-4090")))
    for what in ("TTFT", "TPOT", "E2E", "throughput"):
        assert abs(off(compared, what)) < 0.02, what
    assert all(len(measured) == len(simulated) == 300 for measured, simulated in columns.values())


def test_an_rtx_pro_6000_is_met_within_5_percent():
    compared, _ = compare_run(next(run for run in runs() if run.name.startswith("rtx-pro")))
    for what in ("TTFT", "TPOT", "throughput", "E2E"):
        assert abs(off(compared, what)) < 0.05, what


def test_the_requests_share_what_they_shared():
    shared = [sum(length for _, _, length in each) for each in runs()[0].workload.content]
    assert sum(1 for each in shared if each) == 62
    assert max(shared) == 1320


def test_dense_points_that_ship_are_met():
    some = [each for each in points() if each.model.endswith("Llama-3.1-70B") and each.gpu == "h200_sxm"][::6]
    errors = [off(compare_point(each), "TPOT") for each in some]
    assert len(errors) >= 6 and np.median(np.abs(errors)) < 0.05


def test_a_release_before_0_14_waits_for_its_host():
    assert not deployment_of(point(version="0.12.0")).engine.async_scheduling
    assert deployment_of(point(version="0.14.1")).engine.async_scheduling
    assert deployment_of(point(version="")).engine.async_scheduling


def test_clients_ask_with_lengths_within_the_range():
    work = workload_of(point(clients=3, input_tokens=1000, output_tokens=100))
    assert work.waits.clients == 3 and len(work) == 30  # as InferenceMAX; nobody says how many Qwen had
    assert len(workload_of(point(model="Qwen/Qwen3-32B", clients=3))) == 18
    assert work.prompt_tokens.min() >= 800 and work.prompt_tokens.max() <= 1000
    assert work.output_tokens.min() >= 80 and work.output_tokens.max() <= 100


def test_what_contradicts_physics_is_refused_with_the_arithmetic():
    assert against_physics(point()) is None
    assert against_physics(point(tpot_s=0.002)) == (
        "TPOT 2.00 ms: reading 17.1 GB of dense weights a GPU at 4,800 GB/s takes 3.57 ms"
    )
    assert (
        against_physics(point(precision="", tp=1, gpu="h100_sxm")) == "131 GiB of weights on 1 GPU of 80 GiB"
    )
    found = validate([point(tpot_s=0.002), point(dp=2), point(model="mine"), point()], [])
    assert [name for name, _ in found.refused] == ["one"]
    assert sorted(map(len, found.left_out.values())) == [1, 1] and len(found.points) == 1


def bench_file(path, requests, **facts):
    """What `vllm bench serve --save-detailed` writes, of simulated requests."""
    content = {
        "input_lens": [int(each) for each in requests["prompt_tokens"]],
        "output_lens": [int(each) for each in requests["output_tokens"]],
        "ttfts": [float(each) for each in requests["ttft_s"]],
        "itls": [
            [float(tpot)] * (int(tokens) - 1)
            for tpot, tokens in zip(requests["tpot_s"], requests["output_tokens"], strict=True)
        ],
    }
    path.write_text(json.dumps(content | facts))
    return path


def server():
    engine = EngineConfig(max_num_seqs=64)
    return Deployment(model=model_named("llama-3.1-8b"), gpu=gpu_named("l4"), engine=engine)


def test_a_users_own_measurement_is_met_where_it_is_the_simulation_itself(tmp_path):
    work = workload_of(point(clients=5))
    requests = prepare(server(), work, {}).outcome().requests
    compared, _ = compare_run(
        measured(bench_file(tmp_path / "b.json", requests, max_concurrency=5), server())
    )
    assert compared and all(abs(each.off) < 1e-9 for each in compared)


def test_a_measurement_that_is_none_gets_one_line(tmp_path, capsys):
    file = tmp_path / "b.json"
    for text, words in (
        ("{", "line 1: it is cut before anything is whole"),
        ("{}", "must be of vllm bench serve, AIPerf, GuideLLM or inference-perf, got an object with"),
    ):
        file.write_text(text)
        with pytest.raises(KvsimError, match=words):
            measured(file, server())
    for arguments, words in (
        (["mine.txt"], "source must be points, requests, a .csv of points or a .json of a benchmark"),
        (["b.json"], "needs --model and --gpu"),
        (["none.csv"], "cannot be read: No such file or directory"),
    ):
        assert cli.main(["validate", *arguments]) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "t.csv").write_text("name,model\n")
    with pytest.raises(KvsimError, match="a table of points must have the columns gpu, precision"):
        sources(str(tmp_path / "t.csv"), None, None, 1, None)


def test_the_command_prints_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert cli.main(["validate", "requests", "--out", str(tmp_path / "pictures")]) == 0
    out = capsys.readouterr().out
    assert "rtx-4090 llama-3.1-8b vLLM 0.19" in out and "throughput mean" in out
    assert [path.name for path in (tmp_path / "pictures").glob("*.png")] == ["truth-requests.png"]


@pytest.mark.parametrize("column", [*points_module.LIMITS])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "9" * 30, "1e400", "x", "x" * 5000])
def test_a_number_that_cannot_be_is_told_by_its_column(column, value, tmp_path):
    head, row = points_module._shipped("points").splitlines()[:2]
    cells = dict(zip(head.split(","), row.split(","), strict=True)) | {column: value}
    with pytest.raises(KvsimError, match=f"{column} must be from .* to .*, got") as told:
        points_module.points(f"{head}\n{','.join(cells.values())}\n")
    assert len(str(told.value)) < 250


@pytest.mark.parametrize("text", ["{head}\nx", "{head}\n{row}\rx", '{head}\n"'])
def test_a_table_that_is_cut_off_is_told_in_one_line(text):
    head, row = points_module._shipped("points").splitlines()[:2]
    with pytest.raises(KvsimError):
        points_module.points(text.format(head=head, row=row))


@pytest.mark.parametrize(
    ("model", "gpu", "version", "seats", "tokens", "shares", "memory"),
    [
        ("meta-llama/Llama-3.1-70B", "h100_sxm", "", 16, 8192, False, 0.9),
        ("openai/gpt-oss-120b", "h200_sxm", "0.18.0", 16, 8192, False, 0.9),
        ("openai/gpt-oss-120b", "b200_sxm", "0.15.1", 512, 8192, False, 0.9),
        ("MiniMaxAI/MiniMax-M2.5", "h100_sxm", "0.18.0", 256, 8192, False, 0.9),
        ("MiniMaxAI/MiniMax-M2.5", "b200_sxm", "0.17.0", 1024, 8192, True, 0.95),
        ("MiniMaxAI/MiniMax-M2.5", "b300_sxm", "0.19.0", 1024, 2048, False, 0.9),
        ("Qwen/Qwen3-32B", "h100_sxm", "0.12.0", 1024, 8192, False, 0.9),
    ],
)
def test_a_server_has_the_flags_of_the_script_that_launched_it(
    model, gpu, version, seats, tokens, shares, memory
):
    some = [each for each in points() if (each.model, each.gpu) == (model, gpu)]
    point = replace(some[0], version=version, clients=16, ep=1, dp=1, input_tokens=1024, output_tokens=1024)
    server = deployment_of(point)
    engine = server.engine
    assert (engine.max_num_seqs, engine.max_num_batched_tokens) == (seats, tokens)
    assert (server.enable_expert_parallel, server.gpu_memory_utilization) == (shares, memory)
