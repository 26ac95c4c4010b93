"""A measured run is met if it is the simulation itself; a difference is found where it was put."""

import json
from dataclasses import replace
from math import isnan

import numpy as np
import pytest
from support.bench_files import GUIDELLM, INFERENCE_PERF, bench_serve, measured_on, of_simulation
from support.settings import server_with

import kvsim
from kvsim.sim.bench.compared import Compared
from kvsim.sim.bench.read import read_result
from kvsim.sim.bench.replay import compared, simulated
from kvsim.sim.bench.server import server_of
from kvsim.sim.bench.what_if import changed, parsed
from kvsim.sim.bench.workload import workload_of
from kvsim.sim.build import resolve
from kvsim.sim.counted import signed_percent
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.log import read_log
from kvsim.sim.options.scenario import Scenario

SERVER = {"model": "llama-3.1-8b", "gpu": "l4", "cost": "roofline", "max_num_seqs": 16}
TRAFFIC = {
    "trace": "synthetic",
    "num_prompts": 60,
    "input_len": "uniform:50:400",
    "output_len": "uniform:2:80",
}
LOG = """INFO 01-01 non-default args: {'model': 'meta-llama/Llama-3.1-8B', 'max_num_seqs': 64}
INFO Initializing a V1 LLM engine (v0.33.0) with config: model='meta-llama/Llama-3.1-8B', max_seq_len=8192, \
tensor_parallel_size=1, kv_cache_dtype=auto, enforce_eager=False, enable_prefix_caching=True
INFO Chunked prefill is enabled with max_num_batched_tokens=4096.
INFO Asynchronous scheduling is disabled.
INFO Model loading took 15.00 GiB memory and 3.1 seconds
INFO GPU KV cache size: 41,408 tokens
"""


@pytest.fixture(autouse=True)
def nobody_has_calibrated(tmp_path, monkeypatch):
    monkeypatch.setenv("KVSIM_PROFILES", str(tmp_path / "none"))


def server(**options):
    return server_of(Scenario(**SERVER | options), read_result(GUIDELLM)).scenario


def measured(tmp_path, scale=1.0, slower=1.0, clients=None):
    """A result: the simulation of a server whose steps are `slower`, with each time multiplied."""
    asked = replace(server(), time_scale=slower)
    options = {name: getattr(asked, name) for name in Scenario.__dataclass_fields__}
    when = {"request_rate": 6.0} if clients is None else {"clients": clients}
    table = kvsim.simulate(**options, **TRAFFIC, **when).requests
    facts = {} if clients is None else {"max_concurrency": clients}
    return bench_serve(tmp_path / "b.json", of_simulation(table, scale), **facts)


@pytest.mark.parametrize("clients", [None, 5])
def test_the_simulation_itself_is_met_in_every_number(tmp_path, clients):
    run = read_result(measured(tmp_path, clients=clients))
    found = compared(run, simulated(run, server()))
    names = {each.what for each in found}
    assert names == {"requests", "output tokens", "all tokens", "TTFT", "TPOT", "ITL", "E2E"}
    assert len(found) == 3 + 4 * 4
    for each in found:  # gaps of the file are each request's mean
        assert each.what == "ITL" or abs(each.off) < 1e-6, each


def test_a_fitted_factor_is_the_one_that_was_put_in(tmp_path):
    replay = kvsim.replay(measured(tmp_path, slower=1.3), **SERVER, fit="scale")
    fitted = replay.fitted
    assert abs(fitted.left) < 0.01 and fitted.factor == pytest.approx(1.3, rel=0.01)
    assert fitted.low < 1.3 < fitted.high < 1.05 * fitted.low
    assert fitted.option == f"--time-scale {fitted.factor:.4g}"
    assert replay.table.query("what == 'TPOT'")["off"].max() < -0.1
    steps = next(each for each in replay.terms if each.name == "steps")
    assert steps.seconds < 0 and "too short: TPOT" in steps.says


def test_a_host_is_fitted_where_steps_show_it(tmp_path):
    asked = {**SERVER, "host_time": "2+0", "async_scheduling": False}
    run = measured_with(tmp_path, {**asked, "host_time": "5+0"})
    fitted = kvsim.replay(run, **asked, fit="host").fitted
    assert fitted.factor == pytest.approx(2.5, rel=0.02)
    assert fitted.option.startswith("--host-time 4.9") or fitted.option.startswith("--host-time 5")


def measured_with(tmp_path, options):
    asked = server_of(server_with(**options), read_result(GUIDELLM)).scenario
    whole = {name: getattr(asked, name) for name in Scenario.__dataclass_fields__}
    table = kvsim.simulate(**whole, **TRAFFIC, request_rate=6.0).requests
    return bench_serve(tmp_path / "b.json", of_simulation(table))


def test_a_host_that_hides_behind_the_gpu_is_not_fitted(tmp_path):
    run = measured(tmp_path, slower=0.7)
    with pytest.raises(KvsimError, match=r"fit host: no factor from .* meets the measured TPOT.*--fit scale"):
        kvsim.replay(run, **SERVER, fit="host")


def test_the_terms_sum_to_the_difference_of_the_mean_e2e(tmp_path):
    replay = kvsim.replay(measured(tmp_path, scale=1.2), **SERVER)
    e2e = replay.table.set_index(["what", "statistic"]).loc[("E2E", "mean")]
    known = [each.seconds for each in replay.terms if each.seconds is not None]
    assert sum(known) == pytest.approx(e2e["simulated"] - e2e["measured"])
    assert [each.name for each in replay.terms] == ["steps", "start", "queue", "memory"]
    average = replay.found.summary["memory"]["average"]
    lent = average["token"] + average["reserved"] + average["internal"]
    assert f"{lent:.0f} % allocated on average, as vLLM counts its usage" in replay.terms[-1].says


def test_the_log_says_what_the_user_does_not(tmp_path):
    (tmp_path / "server.log").write_text(LOG)
    log = read_log(tmp_path / "server.log")
    run = read_result(GUIDELLM)
    found = server_of(Scenario(model="llama-3.1-8b", gpu="h100"), run, log)
    chosen = found.scenario
    assert (chosen.max_num_seqs, chosen.max_num_batched_tokens) == (64, 4096)
    assert (chosen.num_gpu_blocks, chosen.block_size) == (41_408 // 16 - 1, 16)  # one is the null block
    assert chosen.async_scheduling is False and chosen.max_model_len == 8192
    assert "num_gpu_blocks 2,587" in found.told[0]
    reserving = Scenario(model="llama-3.1-8b", gpu="h100", allocator="contiguous")
    other = server_of(reserving, run, log).scenario
    assert other.kv_tokens == 41_408 and other.async_scheduling is False
    own = server_of(Scenario(model="llama-3.1-8b", gpu="h100", num_gpu_blocks=500, max_num_seqs=8), run, log)
    assert own.scenario.kv_tokens is None and own.scenario.max_num_seqs == 8


@pytest.mark.parametrize("allocator", ["paged", "contiguous"])
@pytest.mark.parametrize(("release", "waits"), [("0.10.2", True), ("0.13.0", True), ("0.14.0", False)])
def test_a_log_that_is_silent_on_asynchronous_scheduling_is_as_its_release_does(
    tmp_path, allocator, release, waits
):
    text = LOG.replace("INFO Asynchronous scheduling is disabled.\n", "").replace("0.33.0", release)
    (tmp_path / "server.log").write_text(text)
    asked = Scenario(model="llama-3.1-8b", gpu="h100", allocator=allocator)
    found = server_of(asked, read_result(GUIDELLM), read_log(tmp_path / "server.log"))
    assert resolve(found.scenario.deployed()).scheduler.hides_host is not waits
    assert any("schedules a step only after the previous one ends" in each for each in found.told) == (
        waits and allocator == "contiguous"
    )


@pytest.mark.parametrize("log", [None, LOG.replace("0.33.0", "0.32.0"), LOG])
def test_defaults_are_told_once_and_of_the_release_that_was_started(tmp_path, log):
    if log is not None:
        (tmp_path / "server.log").write_text(log)
    path = None if log is None else tmp_path / "server.log"
    replay = kvsim.replay(GUIDELLM, model="llama-3.1-8b", gpu="h100", log=path)
    (told,) = (each for each in replay.notes() if "efaults" in each)
    release = "0.32.0" if log and "0.32.0" in log else "0.33.0"
    open_still = ["gpu_memory_utilization 0.92", "enable_chunked_prefill True"]
    open_still += ["max_num_seqs 1,024", "enable_prefix_caching True"] if log is None else []
    assert told.startswith(f"Defaults of vllm serve {release}: ")
    assert all(each in told for each in open_still) and ("enable_prefix_caching" in told) == (log is None)


def test_without_a_log_the_server_is_vllms(tmp_path):
    found = server_of(Scenario(model="llama-3.1-8b", gpu="h100"), read_result(GUIDELLM)).scenario
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (1024, 8192)
    assert (found.scheduler, found.gpu_memory_utilization) == ("vllm-v1@0.33.0", 0.92)


def test_a_known_cache_grows_as_the_formula_says():
    one = Scenario(model="llama-3.1-8b", gpu="h100", kv_tokens=100_000)
    assert changed(one, parsed("block_size=32")).kv_tokens == 100_000
    two = changed(one, parsed("tensor-parallel-size=2"))
    assert two.tensor_parallel_size == 2 and 200_000 < two.kv_tokens < 300_000
    assert changed(one, parsed("kv_tokens=5000")).kv_tokens == 5000
    blocks = replace(one, kv_tokens=None, num_gpu_blocks=1000)
    assert changed(blocks, parsed("block_size=32")).kv_tokens == 16_000


@pytest.mark.parametrize(
    "name", ["sglang", "vllm-v1@0.11.0", "tensorrt-llm", "vllm-v0", "orca", "lightllm", "nano-vllm"]
)
def test_another_scheduler_needs_nothing_that_nobody_gave(tmp_path, name):
    run = measured(tmp_path)
    other = kvsim.replay(run, **SERVER, max_model_len=2000, what_if=f"scheduler={name}").changed
    assert other.summary["engine"]["scheduler"].startswith(name.partition("@")[0])
    assert other.scenario.max_num_seqs == 16 and other.scenario.async_scheduling is None
    with pytest.raises(KvsimError, match="async_scheduling must be left out"):
        kvsim.replay(run, **SERVER, async_scheduling=True, what_if=f"scheduler={name}")


def test_another_allocator_brings_its_own_scheduler(tmp_path):
    other = kvsim.replay(measured(tmp_path), **SERVER, max_model_len=2000, what_if="allocator=contiguous")
    assert other.changed.scenario.scheduler is None


@pytest.mark.parametrize("what_if", ["allocator=contiguous", "scheduler=orca", "scheduler=sglang"])
@pytest.mark.parametrize("waits", [True, False])
def test_the_host_of_a_server_waits_or_hides_whatever_is_decided_on_it(what_if, waits):
    asked = Scenario(model="llama-3.1-8b", gpu="h100")
    vllm = replace(asked, scheduler="vllm-v1@0.33.0", async_scheduling=not waits)
    other = changed(vllm, parsed(what_if), asked)
    assert resolve(other.deployed()).scheduler.hides_host is not waits


def test_another_load_is_the_same_requests_sooner_or_from_other_clients(tmp_path):
    run = measured(tmp_path)
    span = np.ptp(read_result(run).requests.start_s)

    def at(what_if):
        found = kvsim.replay(run, **SERVER, what_if=what_if).changed
        return found.requests.start_s, found.requests.most_at_once

    plain, faster = at("rate_scale=1")[0], at("rate_scale=2")[0]
    np.testing.assert_allclose(faster, plain / 2, atol=1e-9)
    assert np.ptp(at("request_rate=30")[0]) == pytest.approx(59 / 30, rel=0.1) and span > 5
    assert not at("request_rate=inf")[0].any()
    assert at("clients=3")[1] == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clients=0", "what_if: clients must be above 0, got 0"),
        ("clients=2,rate_scale=2", "what_if: rate_scale must be left out with clients"),
        ("request_rate=2,rate_scale=2", "what_if: rate_scale must be left out with request_rate"),
        ("burstiness=2", "what_if: burstiness needs request_rate"),
    ],
)
def test_loads_that_cannot_be(tmp_path, text, words):
    with pytest.raises(KvsimError, match=words):
        kvsim.replay(measured(tmp_path), **SERVER, what_if=text)


def test_a_closed_loop_has_no_rate_to_scale(tmp_path):
    with pytest.raises(KvsimError, match="rate_scale must be 1 for a closed loop"):
        kvsim.replay(measured(tmp_path, clients=5), **SERVER, what_if="rate_scale=2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("block_size", "what_if must be NAME=VALUE"),
        ("block_sise=32", "unknown.*did you mean 'block_size'"),
        ("block_size=big", "block_size must be a whole number, got 'big'"),
        ("sticky=perhaps", "sticky must be true or false"),
    ],
)
def test_what_if_nothing_of_the_kind(text, words):
    with pytest.raises(KvsimError, match=words):
        parsed(text)


def test_a_point_is_replayed_by_its_means():
    run = read_result(INFERENCE_PERF)
    work = workload_of(run)
    assert len(work) == 6720 and set(work.prompt_tokens) == {218} and set(work.output_tokens) == {210}
    assert work.arrival_ps[-1] / 1e12 == pytest.approx(6720 / 9.872, rel=0.01)
    assert any("at which they were served" in note for note in work.notes)


def test_several_numbers_of_a_point_are_compared(tmp_path):
    plain = {
        "model_id": "meta-llama/Llama-3.1-8B",
        "request_rate": "inf",
        "max_concurrency": 4,
        "completed": 12,
        "failed": 1,
        "total_input_tokens": 1200,
        "total_output_tokens": 240,
        "request_throughput": 4.0,
        "mean_ttft_ms": 50.0,
        "mean_tpot_ms": 60.0,
    }
    (tmp_path / "plain.json").write_text(json.dumps(plain))
    replay = kvsim.replay(tmp_path / "plain.json", **SERVER, fit="scale")
    assert list(replay.table["what"]) == ["requests", "TTFT", "TPOT"]
    assert replay.requests.empty and replay.fitted.low is None
    assert [each.name for each in replay.terms] == ["steps", "start and queue", "memory"]
    assert "1 requests failed and are left out." in replay.notes()


def test_a_what_if_starts_from_the_fitted_server(tmp_path):
    replay = kvsim.replay(measured(tmp_path, slower=1.3), **SERVER, fit="scale", what_if={"max_num_seqs": 4})
    assert replay.changed.scenario.time_scale == replay.fitted.scenario.time_scale
    assert replay.changed.scenario.max_num_seqs == 4
    assert {"fitted", "what if"} <= set(replay.table.columns)
    assert len(replay.requests) == 60 and replay.requests["simulated_e2e_s"].notna().all()


def test_requests_that_do_not_fit_are_left_out_of_both_sides(tmp_path):
    rows = [(0.0, 10, 5, 0.1, [0.02] * 4), (0.1, 9000, 5, 3.0, [0.02] * 4)]
    replay = kvsim.replay(bench_serve(tmp_path / "b.json", rows), **SERVER, max_model_len=1000)
    assert len(replay.requests) == 1
    assert any("1 requests do not fit" in note for note in replay.notes())


def test_what_replay_needs(tmp_path):
    with pytest.raises(KvsimError, match="replay needs model and gpu"):
        kvsim.replay(GUIDELLM, model="llama-3.1-8b")
    with pytest.raises(KvsimError, match="unknown"):
        kvsim.replay(GUIDELLM, **SERVER, request_rate=3)
    with pytest.raises(KvsimError, match="fit must be one of host, scale"):
        kvsim.replay(GUIDELLM, **SERVER, fit="all")


def test_scaled_steps_are_the_same_one_by_one_and_in_spans():
    options = {**SERVER, **TRAFFIC, "request_rate": 6.0, "time_scale": 1.37}
    spans, steps = kvsim.simulate(**options), kvsim.simulate(**options, step_mode=True)
    for name in ("ttft_s", "e2e_s"):
        np.testing.assert_array_equal(spans.requests[name], steps.requests[name])
    plain = kvsim.simulate(**options | {"time_scale": 1.0})
    assert spans.requests["tpot_s"].mean() > 1.3 * plain.requests["tpot_s"].mean()


# -- servers that really ran ----------------------------------------------------------------------

MOST_OFF = {"rtx-4090": 0.03, "rtx-pro-6000": 0.12}
"""GPU -> how far off mean TPOT and E2E may be."""


@pytest.mark.slow
@pytest.mark.parametrize("gpu", MOST_OFF)
def test_a_run_that_really_was_is_met(gpu, tmp_path):
    """vLLM 0.19 called directly, without a front end; what requests share is unknown to the replay."""
    result, log, run = measured_on(gpu, tmp_path)
    server = {"model": "llama-3.1-8b", "gpu": run.name.split()[0], "frontend_latency": 0.0, "log": log}
    replay = kvsim.replay(result, **server, fit="scale")
    table = replay.table.set_index(["what", "statistic"])
    assert table.measured["E2E", "mean"] == pytest.approx(run.e2e_s.mean())
    assert table.measured["TTFT", "p99"] == pytest.approx(np.quantile(run.ttft_s, 0.99))
    most = MOST_OFF[gpu]
    for what in ("TPOT", "E2E"):
        assert abs(table.off[what, "mean"]) < most, what
    assert replay.fitted.low <= replay.fitted.factor <= replay.fitted.high
    assert table.fitted["TPOT", "mean"] == pytest.approx(table.measured["TPOT", "mean"], rel=0.005)
    assert abs(table.fitted["E2E", "mean"] / table.measured["E2E", "mean"] - 1) < 0.03
    if gpu == "rtx-4090":
        assert "KV memory of 41,392 tokens: given." in replay.notes()
        larger = kvsim.replay(result, **server, what_if="num_gpu_blocks=5176")
        assert larger.changed.numbers["E2E", "mean"] < 0.8 * larger.found.numbers["E2E", "mean"]


def test_a_replay_and_its_what_if_name_their_clocks(tmp_path):
    run = measured(tmp_path, slower=1.5)
    asked = {**SERVER, "max_model_len": 2000, "what_if": "block_size=32"}
    found = kvsim.replay(run, **asked)
    assert found.clock() == ["Clock: roofline; not validated."]
    as_json = found.as_json()
    assert as_json["cost"]["clock"] == as_json["what_if_cost"]["clock"] == "roofline"
    fitted = kvsim.replay(run, **asked, fit="scale")  # its what-if starts from the fitted server
    assert fitted.clock() == ["Clock: roofline; not validated."]
    assert fitted.as_json()["what_if_cost"]["clock"].startswith("roofline x 1.")
    assert found.plot("requests").texts[-1].get_text() == "clock: roofline; not validated"


def test_what_took_no_time_has_no_error():
    nothing = Compared("TPOT", "mean", 0.0, 0.0)
    assert isnan(nothing.off) and signed_percent(nothing.off) == "-"
    assert signed_percent(Compared("TTFT", "mean", 0.2, 0.1).off) == "-50.0 %"
