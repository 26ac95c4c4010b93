"""Simulated runs in the formats of benchmark tools: keys, types and relations as in recorded results."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.bench_files import AIPERF, GUIDELLM, VLLM
from support.settings import server_with

from kvsim import cli
from kvsim.sim.bench.measured import Gaps
from kvsim.sim.bench.read import read_result
from kvsim.sim.bench.served import served
from kvsim.sim.bench.token_times import token_gaps
from kvsim.sim.bench.weighted import rates, under_way, weighted
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.run import prepare
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.workloads.source import opened

SERVER = ["--model", "llama-3.1-8b", "--gpu", "l4", "--cost", "roofline"]
TRAFFIC = ["--trace", "synthetic", "--num-prompts", "30", "--input-len", "uniform:20:300"]
LENGTHS = ["--output-len", "uniform:1:40", "--no-plots", "-q"]
FORMATS = {
    "vllm": "vllm-bench.json",
    "aiperf": "profile_export.jsonl",
    "guidellm": "benchmarks.json",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Format -> a directory; the same requests at a rate in each, and in `closed` from 4 clients."""
    found = {}
    for form in FORMATS:
        found[form] = tmp_path_factory.mktemp("run") / form
        run(form, found[form], "--request-rate", "4")
        found[f"{form}-closed"] = tmp_path_factory.mktemp("run") / form
        run(form, found[f"{form}-closed"], "--clients", "4")
    return found


def run(form, out, *when):
    out = ["--result-format", form, "--out", str(out)]
    assert cli.main(["run", *SERVER, *TRAFFIC, *LENGTHS, *when, *out]) == 0


def content(path):
    return json.loads(path.read_text())


def kinds(value):
    """The JSON type of a value, where 0 and 0.0 are both numbers."""
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )


def alike(mine, theirs, where=""):
    """What is in both has the same type, recursively; null matches anything."""
    if mine is None or theirs is None:
        return
    assert kinds(mine) == kinds(theirs), where
    if isinstance(mine, dict):
        for name in mine.keys() & theirs.keys():
            alike(mine[name], theirs[name], f"{where}.{name}")
    if isinstance(mine, list) and mine and theirs:
        alike(mine[0], theirs[0], f"{where}[0]")


@pytest.mark.parametrize("closed", ["", "-closed"])
@pytest.mark.parametrize("form", FORMATS)
def test_what_is_written_is_read_back_as_the_run_itself(written, form, closed):
    directory = written[form + closed]
    found, summary = read_result(directory / FORMATS[form]), content(directory / "summary.json")
    assert found.count == 30 and found.closed == bool(closed)
    assert found.clients == (4 if closed else None)
    latency, numbers = summary["latency"], found.numbers()
    for what, name in (("TTFT", "ttft_s"), ("E2E", "e2e_s"), ("ITL", "itl_s")):
        for statistic in ("mean", "p50", "p90", "p99"):
            if (what, statistic) in numbers:  # GuideLLM keeps no gaps
                assert numbers[what, statistic] == pytest.approx(latency[name][statistic], rel=2e-3), what
    assert ("ITL", "mean") in numbers or form == "guidellm"
    assert numbers["output tokens", "per s"] == pytest.approx(found.told["output tokens", "per s"], rel=1e-6)


def test_the_same_seed_writes_the_same_bytes(written, tmp_path):
    run("aiperf", tmp_path / "again", "--request-rate", "4")
    for name in ("profile_export.jsonl", "profile_export_aiperf.json"):
        assert (tmp_path / "again" / name).read_bytes() == (written["aiperf"] / name).read_bytes()


def test_nothing_that_was_not_asked_for_is_written(written):
    names = {path.name for path in written["vllm"].iterdir() if not path.name.startswith(".")}
    assert names == {"config.json", "summary.json", "requests.parquet", "timeline.parquet", "vllm-bench.json"}


# -- vllm bench serve -----------------------------------------------------------------------------


def test_vllms_keys_and_types(written):
    mine, theirs = content(written["vllm-closed"] / "vllm-bench.json"), content(VLLM)
    assert theirs.keys() - mine.keys() == set()
    alike(mine, theirs)


@pytest.mark.parametrize("file", ["recorded", "ours"])
def test_vllms_relations(written, file):
    found = content(VLLM if file == "recorded" else written["vllm-closed"] / "vllm-bench.json")
    ttft, gaps = np.array(found["ttfts"]), Gaps.of(found["itls"])
    output = np.array(found["output_lens"])
    assert found["total_output_tokens"] == output.sum() and found["completed"] == len(output)
    assert found["request_throughput"] == pytest.approx(found["completed"] / found["duration"])
    e2e = np.array(found["latencies"]) if "latencies" in found else ttft + gaps.sums()
    later = output > 1
    for name, values in (
        ("ttft", ttft),
        ("itl", gaps.seconds),
        ("e2el", e2e),
        ("tpot", (e2e - ttft)[later] / (output - 1)[later]),
    ):
        close = {"rel": 1e-9} if name != "tpot" else {"rel": 1e-6}
        assert found[f"mean_{name}_ms"] == pytest.approx(1e3 * values.mean(), **close)
        assert found[f"std_{name}_ms"] == pytest.approx(1e3 * values.std(), **close)
        assert found[f"p99_{name}_ms"] == pytest.approx(1e3 * np.percentile(values, 99), **close)


# -- AIPerf ---------------------------------------------------------------------------------------


def test_aiperfs_keys_and_types(written):
    mine, theirs = (content(place / "profile_export_aiperf.json") for place in (written["aiperf"], AIPERF))
    assert mine.keys() <= theirs.keys() | {"error_request_count"}
    alike({**mine, "input_config": None}, theirs)
    for name in mine.keys() & theirs.keys() - {"input_config"}:
        if isinstance(mine[name], dict):
            assert mine[name].keys() == theirs[name].keys(), name
            assert mine[name]["unit"] == theirs[name]["unit"], name
    lines = [
        [json.loads(line) for line in (place / "profile_export.jsonl").read_text().splitlines()]
        for place in (written["aiperf"], AIPERF)
    ]
    for part in ("metadata", "metrics"):
        assert lines[0][0][part].keys() <= lines[1][0][part].keys()
    alike(lines[0][0], lines[1][0])


@pytest.mark.parametrize("file", ["recorded", "ours"])
def test_aiperfs_relations(written, file):
    place = AIPERF if file == "recorded" else written["aiperf"]
    summary = content(place / "profile_export_aiperf.json")
    records = [
        json.loads(line)["metrics"] for line in (place / "profile_export.jsonl").read_text().splitlines()
    ]
    for each in records:
        assert each["time_to_first_token"]["value"] <= each["request_latency"]["value"]
        if "inter_token_latency" in each:
            rest = each["request_latency"]["value"] - each["time_to_first_token"]["value"]
            tokens = each["output_sequence_length"]["value"] - 1
            assert each["inter_token_latency"]["value"] == pytest.approx(rest / tokens)
    for name in ("time_to_first_token", "request_latency", "inter_token_latency"):
        values = np.array([each[name]["value"] for each in records if name in each])
        assert summary[name]["avg"] == pytest.approx(values.mean())
        assert summary[name]["std"] == pytest.approx(values.std())
        assert summary[name]["p90"] == pytest.approx(np.percentile(values, 90))
        assert summary[name]["count"] == len(values)


# -- GuideLLM -------------------------------------------------------------------------------------


def test_guidellms_keys_and_types(written):
    mine, theirs = content(written["guidellm-closed"] / "benchmarks.json"), content(GUIDELLM)
    alike(mine, theirs)
    (ours,), (recorded,) = mine["benchmarks"], theirs["benchmarks"]
    assert ours.keys() == recorded.keys()
    modalities = {"text", "image", "video", "audio", "tool_call"}  # cut from the recorded file
    assert ours["metrics"].keys() - modalities <= recorded["metrics"].keys()
    one, other = (each["requests"]["successful"][0] for each in (ours, recorded))
    assert one.keys() <= other.keys() and one["info"]["timings"].keys() <= other["info"]["timings"].keys()


@pytest.mark.parametrize("file", ["recorded", "ours"])
def test_guidellms_relations(written, file):
    whole = content(GUIDELLM if file == "recorded" else written["guidellm-closed"] / "benchmarks.json")
    (found,) = whole["benchmarks"]
    metrics, requests = found["metrics"], found["requests"]["successful"]
    columns = {
        name: np.array([each[name] for each in requests if each["inter_token_latency_ms"] is not None], float)
        for name in ("time_to_first_token_ms", "time_per_output_token_ms", "inter_token_latency_ms")
    }
    every = {
        name: np.array([each[name] for each in requests], dtype=float)
        for name in ("request_latency", "output_tokens", "time_to_first_token_ms", "time_per_output_token_ms")
    }
    later = every["output_tokens"][every["output_tokens"] > 1] - 1
    expected = {
        "request_latency": weighted(every["request_latency"]),
        "time_to_first_token_ms": weighted(every["time_to_first_token_ms"]),
        "time_per_output_token_ms": weighted(every["time_per_output_token_ms"], every["output_tokens"]),
        "inter_token_latency_ms": weighted(columns["inter_token_latency_ms"], later),
    }
    start, end = found["start_time"], found["end_time"]
    ends = np.array([each["request_end_time"] for each in requests])
    starts = np.array([each["request_start_time"] for each in requests])
    expected["requests_per_second"] = rates(ends, np.ones(len(ends)), start, end)
    expected["request_concurrency"] = under_way(starts, ends, start, end)
    for name, mine in expected.items():
        theirs = metrics[name]["successful"]
        for statistic in ("mean", "median", "min", "max", "std_dev", "count", "total_sum"):
            assert theirs[statistic] == pytest.approx(mine[statistic], rel=1e-4), (name, statistic)
        for share, value in mine["percentiles"].items():
            assert theirs["percentiles"][share] == pytest.approx(value, rel=1e-4), (name, share)


# -- token times ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheduler", "allocator"),
    [
        ("vllm-v1@0.33.0", "paged"),
        ("vllm-v1@0.11.0", "paged"),
        ("vllm-v0", "paged"),
        ("orca", "contiguous"),
        ("static", "contiguous"),
        ("nano-vllm", "paged"),
    ],
)
def test_the_times_of_tokens_sum_to_the_picosecond_with_preemptions(scheduler, allocator):
    server = Scenario(
        model="llama-3.1-8b",
        gpu="l4",
        cost="roofline",
        kv_tokens=9000,
        scheduler=scheduler,
        allocator=allocator,
        max_model_len=2048,
    )
    traffic = opened(Traffic(num_prompts=80, request_rate=20.0))
    outcome = prepare(server.deployed(), traffic.workload(), {}, step_log=True, events=True).outcome()
    if allocator == "paged":
        assert outcome.summary["engine"]["preemptions_recompute"] > 0
    rows = np.flatnonzero(outcome.requests["status"] != "rejected")
    gaps = token_gaps(outcome, rows)
    table = outcome.requests
    decoding = (table["finish_s"] - table["first_token_s"])[rows]
    np.testing.assert_allclose(gaps.sums(), decoding, atol=1e-9)
    assert np.diff(gaps.offsets).tolist() == (table["output_tokens"][rows] - 1).tolist()
    assert gaps.seconds.mean() == pytest.approx(outcome.summary["latency"]["itl_s"]["mean"])


@pytest.mark.parametrize(
    ("scheduler", "allocator", "more"),
    [
        ("vllm-v1", "paged", {}),
        ("vllm-v0", "paged", {"preemption": "swap", "num_cpu_blocks": 300}),
        ("sglang", "sglang", {}),
        ("orca", "contiguous", {}),
    ],
)
@pytest.mark.parametrize("replicas", [1, 3])
def test_several_answers_are_one_stream_and_several_replicas_one_server(scheduler, allocator, more, replicas):
    tokens = 4000 if allocator == "contiguous" else 400
    server = server_with(
        model="llama-3.1-8b", gpu="l4", cost="roofline", max_model_len=2048, kv_tokens=tokens, **more,
        scheduler=scheduler, allocator=allocator,
    )  # fmt: skip
    lengths = {"trace": "synthetic", "input_len": "uniform:20:60", "output_len": "uniform:1:60"}
    traffic = opened(Traffic(num_prompts=40, n=3, request_rate=20.0, **lengths))
    logs = {"step_log": True, "events": True}
    where = replace(server.deployed(), fleet=FleetConfig(replicas=replicas))
    outcome = prepare(where, traffic.workload(), traffic.as_json(), **logs).outcome()
    engine = outcome.summary["engine"]
    if allocator == "paged":
        assert engine["preemptions_recompute"] + engine["preemptions_swap"] > 0
    run, table = served(outcome), outcome.requests
    assert len(run.requests) == 40
    assert run.requests.output_tokens.sum() == outcome.samples["output_tokens"].sum()
    order = np.argsort(table["arrival_s"], kind="stable")
    np.testing.assert_allclose(
        run.gaps.sums(), (table["finish_s"] - table["first_token_s"])[order], atol=1e-9
    )
    assert np.diff(run.gaps.offsets).tolist() == (run.requests.output_tokens - 1).tolist()
    together = int((run.gaps.seconds == 0).sum())  # answers side by side
    assert (run.gaps.seconds >= 0).all() and (together >= 40 or allocator == "contiguous")


@pytest.mark.parametrize("scheduler", ["vllm-v1", "vllm-v0"])
def test_tokens_that_died_with_a_replica_are_in_no_stream(scheduler):
    server = server_with(
        model="llama-3.1-8b",
        gpu="l4",
        cost="roofline",
        max_model_len=2048,
        kv_tokens=2000,
        scheduler=scheduler,
    )
    lengths = {"trace": "synthetic", "input_len": "uniform:20:60", "output_len": "uniform:1:60"}
    traffic = opened(Traffic(num_prompts=60, n=2, request_rate=20.0, **lengths))
    fail = "replica=0:at=1:for=0.5 replica=1:at=2:for=0.5 replica=0:at=2.5:for=1"
    where = replace(server.deployed(), fleet=FleetConfig(replicas=2, fail=fail))
    logs = {"step_log": True, "events": True}
    outcome = prepare(where, traffic.workload(), traffic.as_json(), **logs).outcome()
    run, table = served(outcome), outcome.requests
    assert table["resent"].max() > 1
    assert run.requests.output_tokens.sum() == outcome.samples["output_tokens"].sum()
    order = np.argsort(table["arrival_s"], kind="stable")
    decoding = (table["finish_s"] - table["first_token_s"])[order]
    np.testing.assert_allclose(run.gaps.sums(), decoding, atol=1e-9)


# -- goodput --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Format -> the file of a run with limits that some requests miss, and some one-token answers."""
    found = {}
    for form in FORMATS:
        out = tmp_path_factory.mktemp("goodput") / form
        slo = ["--slo", "ttft=130ms,tpot=80ms,e2e:p99=9s"]
        flags = [*LENGTHS, "--output-len", "uniform:1:6", "--clients", "8", *slo]
        assert cli.main(["run", *SERVER, *TRAFFIC, *flags, "--result-format", form, "--out", str(out)]) == 0
        found[form] = out
    return found


def test_goodput_is_counted_as_each_tool_counts(judged):
    result = content(judged["vllm"] / "vllm-bench.json")
    output, ttft = np.array(result["output_lens"]), np.array(result["ttfts"])
    rest = np.array(result["latencies"]) - ttft
    alone, early = output == 1, ttft <= 0.13
    fine = ~alone & (rest / np.maximum(output - 1, 1) <= 0.08)
    assert alone.sum() and 0 < (early & fine).sum() < (early & ~alone).sum() < (~alone).sum()
    assert result["request_goodput"] == pytest.approx((early & (fine | alone)).sum() / result["duration"])

    summary = content(judged["aiperf"] / "profile_export_aiperf.json")
    assert summary["good_request_count"] == {"unit": "requests", "avg": (early & fine).sum()}
    goodput = (early & fine).sum() / summary["benchmark_duration"]["avg"]
    assert summary["goodput"] == {"unit": "requests/sec", "avg": pytest.approx(goodput)}
    assert summary["input_config"]["slos"] == {"time_to_first_token": 130.0, "inter_token_latency": 80.0}

    (benchmark,) = content(judged["guidellm"] / "benchmarks.json")["benchmarks"]
    metrics = benchmark["metrics"]
    assert benchmark["config"]["slo"] == {"ttft_ms": 130.0, "tpot_ms": 80.0}
    assert metrics["slo_determined_requests"] == (~alone).sum()
    assert metrics["slo_attainment"] == pytest.approx((early & fine).sum() / (~alone).sum())
    rate = metrics["request_goodput"]["successful"]["mean"]
    assert rate == pytest.approx((early & fine).sum() / benchmark["duration"], rel=1e-6)


def test_without_limits_that_the_tools_know_there_is_no_goodput(written, tmp_path):
    flags = ["--request-rate", "4", "--slo", "queueing=1s,ttft=1s"]
    for form in FORMATS:
        run(form, tmp_path / form, *flags)
    for place in (written["vllm"], tmp_path / "vllm"):
        assert content(place / "vllm-bench.json")["request_goodput"] is None
    for place in (written["aiperf"], tmp_path / "aiperf"):
        assert not {"goodput", "good_request_count"} & content(place / "profile_export_aiperf.json").keys()
    for place in (written["guidellm"], tmp_path / "guidellm"):
        (benchmark,) = content(place / "benchmarks.json")["benchmarks"]
        assert benchmark["metrics"]["request_goodput"] is benchmark["metrics"]["slo_attainment"] is None
        assert benchmark["metrics"]["slo_determined_requests"] == 0 and benchmark["config"]["slo"] is None


def test_what_cannot_be_written_is_refused_in_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for extra, words in (
        (
            ["--result-format", "genai-perf"],
            "result_format must be one of vllm, aiperf, guidellm, got 'genai",
        ),
        (["--result-format", "vllm", "--no-out"], "result_format must be left out with no_out"),
        (
            ["--result-format", "vllm", "--beam-width", "2", "--scheduler", "vllm-v0"],
            "result_format must be left out with beam_width 2: a beam search answers when it ends",
        ),
    ):
        assert cli.main(["run", *SERVER, *TRAFFIC, *LENGTHS, "--request-rate", "4", *extra]) == 2
        told = capsys.readouterr().err
        assert words in told and told.count("\n") == 1, told
    assert not list(tmp_path.rglob("*.json"))


def test_without_a_log_there_are_no_token_times():
    traffic = opened(Traffic(num_prompts=3, request_rate=20.0))
    outcome = prepare(Scenario().deployed(), traffic.workload(), {}).outcome()
    with pytest.raises(KvsimError, match="need the step log"):
        token_gaps(outcome, np.arange(3))
