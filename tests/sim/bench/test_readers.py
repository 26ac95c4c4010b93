"""Results of benchmark tools are read into one form; truncated ones as far as they are complete."""

import json
import shutil
from math import inf

import numpy as np
import pytest
from support.bench_files import AIPERF, GUIDELLM, INFERENCE_PERF, VLLM, bench_serve

from kvsim.sim.bench.read import read_result
from kvsim.sim.errors import KvsimError

THREE = [
    (100.5, 30, 3, 0.2, [0.01, 0.03]),
    (100.0, 10, 2, 0.1, [0.02]),
    (101.0, 20, 1, 0.4, []),
]


def test_every_request_of_vllm_bench_serve_in_order_of_its_start(tmp_path):
    run = read_result(bench_serve(tmp_path / "b.json", THREE))
    requests = run.requests
    assert run.tool == "vllm bench serve" and (run.count, run.failed) == (3, 0)
    np.testing.assert_allclose(requests.start_s, [0, 0.5, 1])
    assert requests.input_tokens.tolist() == [10, 30, 20]
    np.testing.assert_allclose(requests.e2e_s, [0.12, 0.24, 0.4])
    np.testing.assert_allclose(requests.tpot_s, [0.02, 0.02, np.nan])
    numbers = run.numbers()
    assert numbers["TPOT", "mean"] == pytest.approx(0.02)
    assert numbers["ITL", "mean"] == pytest.approx(0.02) and numbers["ITL", "p99"] == pytest.approx(0.0298)
    assert numbers["requests", "per s"] == pytest.approx(3 / 1.4)


def test_a_result_of_vllm_itself():
    run, told = read_result(VLLM), json.loads(VLLM.read_text())
    assert run.count == 12 and run.clients == 3 and run.closed and run.model == "toy"
    for theirs, what in (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2el", "E2E")):
        for statistic in ("mean", "p50", "p90", "p99"):
            value = 1e3 * run.numbers()[what, statistic]
            assert value == pytest.approx(told[f"{statistic}_{theirs}_ms"], rel=1e-6), (what, statistic)
    assert run.told["TPOT", "p99"] == pytest.approx(run.numbers()["TPOT", "p99"], rel=1e-6)


def test_failed_requests_are_counted_and_left_out(tmp_path):
    failed = (100.2, 10, 0, 0.0, [])
    run = read_result(
        bench_serve(tmp_path / "b.json", [THREE[0], failed, THREE[1]], errors=["", "timeout", ""])
    )
    assert (run.count, run.failed) == (2, 1)


def test_newer_files_say_when_a_request_ended(tmp_path):
    run = read_result(bench_serve(tmp_path / "b.json", THREE, latencies=[0.3, 0.2, 0.5]))
    np.testing.assert_allclose(run.requests.e2e_s, [0.2, 0.3, 0.5])


def test_a_plain_result_is_a_point(tmp_path):
    file = tmp_path / "plain.json"
    plain = {
        "model_id": "m",
        "request_rate": 4.0,
        "max_concurrency": None,
        "duration": 25.0,
        "completed": 100,
        "failed": 2,
        "total_input_tokens": 51_200,
        "total_output_tokens": 12_800,
        "request_throughput": 4.0,
        "mean_ttft_ms": 50.0,
        "median_ttft_ms": 40.0,
        "p99_ttft_ms": 200.0,
    }
    file.write_text(json.dumps(plain))
    run = read_result(file)
    assert run.requests is None and (run.count, run.failed) == (100, 2)
    assert (run.input_tokens, run.output_tokens, run.request_rate) == (512, 128, 4.0)
    assert run.numbers()["TTFT", "p50"] == pytest.approx(0.04)
    assert not run.closed


def test_a_limit_of_requests_under_way_is_a_closed_loop_where_it_was_reached(tmp_path):
    paced = {"request_rate": 2.0, "max_concurrency": 3}
    together = [(0.0 + place / 100, 10, 2, 0.5, [0.1]) for place in range(4)]
    assert read_result(bench_serve(tmp_path / "a.json", THREE, max_concurrency=2)).closed
    assert not read_result(bench_serve(tmp_path / "b.json", THREE, **paced)).closed
    assert read_result(bench_serve(tmp_path / "c.json", together, **paced)).closed
    assert read_result(tmp_path / "c.json").requests.most_at_once == 4


def test_of_appended_runs_the_last_or_the_one_asked_for(tmp_path):
    one = bench_serve(tmp_path / "one.json", THREE).read_text()
    two = bench_serve(tmp_path / "two.json", THREE[:1]).read_text()
    file = tmp_path / "both.json"
    file.write_text(f"{one}\n{two}")
    assert read_result(file).count == 1 and read_result(file, 1).count == 3
    assert read_result(file).notes == ("The last of 2 runs; another: --run N.",)
    with pytest.raises(KvsimError, match="run must be from 1 to 2"):
        read_result(file, 3)


def test_aiperfs_requests_with_the_load_from_the_summary_beside_them():
    run = read_result(AIPERF / "profile_export.jsonl")
    assert run.tool == "AIPerf" and run.count == 12 and run.clients == 3 and run.closed
    told = read_result(AIPERF / "profile_export_aiperf.json")
    assert told.requests is None and told.count == 12 and told.clients == 3
    for what in ("TTFT", "E2E", "ITL"):
        for statistic in ("mean", "p50", "p90", "p99"):
            mine = run.numbers()[what, statistic]
            assert mine == pytest.approx(told.numbers()[what, statistic], rel=1e-6), (what, statistic)
    assert set(run.requests.output_tokens) == {12}  # the server's count; AIPerf's own tokenizer finds 7
    assert 11 * run.numbers()["TPOT", "mean"] == pytest.approx(6 * told.numbers()["TPOT", "mean"])
    assert told.request_rate == inf and told.model == "toy"


def test_aiperfs_first_names_its_warm_up_and_its_errors(tmp_path):
    lines = [
        {"metadata": {"timestamp_ns": 10**18, "credit_phase": "warmup"}, "metrics": {}, "error": None},
        {
            "metadata": {"timestamp_ns": 10**18, "credit_phase": "profiling"},
            "metrics": {"error_request_count": {"value": 1, "unit": "requests"}},
            "error": {"code": 499},
        },
        {
            "metadata": {"timestamp_ns": 10**18, "credit_phase": "profiling"},
            "metrics": {
                "input_sequence_length": {"value": 550, "unit": "tokens"},
                "ttft": {"value": 1680.5, "unit": "ms"},
                "request_latency": {"value": 7936.0, "unit": "ms"},
                "inter_chunk_latency": {"value": [134.4, 141.3], "unit": "ms"},
                "output_sequence_length": {"value": 193, "unit": "tokens"},
            },
            "error": None,
        },
    ]
    file = tmp_path / "profile_export.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    run = read_result(file)
    assert (run.count, run.failed) == (1, 1) and run.notes == ("1 requests of the warm-up are left out.",)
    assert run.requests.ttft_s[0] == pytest.approx(1.6805)
    assert run.requests.gaps.seconds.tolist() == pytest.approx([0.1344, 0.1413])


def test_guidellms_inter_token_latency_is_tpot_weighted_by_tokens():
    run = read_result(GUIDELLM)
    metrics = json.loads(GUIDELLM.read_text())["benchmarks"][0]["metrics"]
    assert run.tool == "GuideLLM" and run.count == 12 and run.clients == 3 and run.closed
    mean = {name: metrics[name]["successful"]["mean"] for name in metrics if name.endswith("_ms")}
    requests, numbers = run.requests, run.numbers()
    assert numbers["TTFT", "mean"] == pytest.approx(mean["time_to_first_token_ms"] / 1e3)
    weights = requests.output_tokens - 1
    weighted = (requests.tpot_s * weights).sum() / weights.sum()
    assert weighted == pytest.approx(mean["inter_token_latency_ms"] / 1e3)
    by_tokens = requests.e2e_s.sum() / requests.output_tokens.sum()
    assert by_tokens == pytest.approx(mean["time_per_output_token_ms"] / 1e3)
    assert run.told["E2E", "mean"] == pytest.approx(
        numbers["E2E", "mean"], rel=0.02
    )  # the stream's end is later


def test_the_numbers_of_inference_perf():
    run = read_result(INFERENCE_PERF)
    assert run.tool == "inference-perf" and run.count == 6720 and run.requests is None
    assert run.input_tokens == pytest.approx(217.867, abs=1e-3)
    assert run.numbers()["TPOT", "p90"] == pytest.approx(0.0353161, abs=1e-6)
    assert run.numbers()["all tokens", "per s"] == pytest.approx(4223.129, abs=1e-3)


@pytest.mark.parametrize("newer", [False, True])
def test_the_requests_of_inference_perf(tmp_path, newer):
    info = {"input_tokens": 591, "output_tokens": 3, "output_token_times": [10.5, 10.6, 10.8]}
    if newer:
        info = {
            "request_metrics": {"text": {"input_tokens": 591}},
            "response_metrics": {"output_tokens": 3, "output_token_times": [10.5, 10.6, 10.8]},
        }
    rows = [
        {"start_time": 10.0, "end_time": 10.9, "info": info, "error": None},
        {"start_time": 10.1, "end_time": 10.2, "info": {}, "error": {"error_type": "timeout"}},
    ]
    file = tmp_path / "per_request_lifecycle_metrics.json"
    file.write_text(json.dumps(rows))
    run = read_result(file)
    assert (run.count, run.failed) == (1, 1)
    assert (run.requests.ttft_s[0], run.requests.e2e_s[0]) == (pytest.approx(0.5), pytest.approx(0.8))
    assert run.requests.gaps.seconds.tolist() == pytest.approx([0.1, 0.2])


def test_a_cut_result_gives_the_requests_that_are_whole(tmp_path):
    file = bench_serve(tmp_path / "b.json", THREE)
    text = file.read_text()
    end = text.index('"itls"') + len('"itls": [[0.01, 0.03], [0.0')
    file.write_text(text[:end])
    run = read_result(file)
    assert run.count == 1 and run.requests.e2e_s[0] == pytest.approx(0.24)
    assert run.notes == (
        "The file is cut in line 1: what is whole before it is read.",
        "Of 3 requests 1 are whole.",
    )


def test_a_result_cut_anywhere_is_read_or_refused_in_one_line(tmp_path):
    text = bench_serve(tmp_path / "b.json", THREE).read_text()
    counts = set()
    for end in range(len(text)):
        (tmp_path / "cut.json").write_text(text[:end])
        try:
            counts.add(read_result(tmp_path / "cut.json").count)
        except KvsimError as error:
            assert "\n" not in str(error)
            counts.add(None)
    assert counts == {None, 1, 2, 3}


def test_lines_that_end_in_mid_line_give_those_before(tmp_path):
    shutil.copy(AIPERF / "profile_export_aiperf.json", tmp_path)
    text = (AIPERF / "profile_export.jsonl").read_text()
    file = tmp_path / "profile_export.jsonl"
    file.write_text(text[: text.rindex('"request_latency"')])
    run = read_result(file)
    assert run.count == 11 and run.notes == ("The file is cut in line 12: the 11 lines before it are read.",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "b.json, line 1: must be JSON|it is cut before anything is whole"),
        ("hello", "b.json, line 1: must be JSON"),
        ("[1, 2]", "must be of vllm bench serve, AIPerf, GuideLLM or inference-perf, got list"),
        ('{"a": 1}', r"must be of vllm .* got an object with \['a'\]"),
        ('{\n"completed": 1,\n"request_throughput" 2}', "b.json, line 3: must be JSON"),
        ('{"completed": 0, "request_throughput": 0}', "must hold at least one answered request, got none"),
        ('{"completed": 5, "request_throughput": 1.0}', "must say how long prompts and answers are"),
        ('{"completed": 5, "request_throughput": "x"}', "request_throughput must be a number, got 'x'"),
        (
            '{"ttfts": ["x"], "itls": [], "input_lens": [1], "output_lens": [1]}',
            r"ttfts\[0\] must be a number",
        ),
        (
            '{"ttfts": [1], "itls": [], "input_lens": [1.5], "output_lens": [1]}',
            r"input_lens\[0\] must be a who",
        ),
        (
            '{"metadata": {}, "metrics": {}}\n{"metadata": {}, "metrics": {}}',
            "line 1: metrics must have input",
        ),
        (
            '{"metadata": {}, "metrics": {}}\nx\n{"metadata": {}, "metrics": {}}',
            "line 2: must be a JSON object",
        ),
        ('{"benchmarks": [{"requests": {"successful": [3]}}]}', "benchmark 1, request 0: must be an object"),
    ],
)
def test_what_is_no_result_is_refused_with_file_and_place(tmp_path, text, words):
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(KvsimError, match=words) as told:
        read_result(tmp_path / "b.json")
    assert "\n" not in str(told.value)


@pytest.mark.slow
@pytest.mark.parametrize("file", [VLLM, GUIDELLM, INFERENCE_PERF, AIPERF / "profile_export_aiperf.json"])
def test_a_wrong_value_is_told_with_its_line(tmp_path, file):
    """One number after the other becomes a text; the error names its line."""
    lines = json.dumps(json.loads(file.read_text()), indent=1).splitlines()
    found = set()
    for place, line in enumerate(lines):
        name, colon, value = line.partition(": ")
        if not colon or not value[:1].isdigit() or len(found) > 40:
            continue
        text = "\n".join([*lines[:place], f'{name}: "x"{"," * value.endswith(",")}', *lines[place + 1 :]])
        (tmp_path / "b.json").write_text(text)
        try:
            read_result(tmp_path / "b.json")
        except KvsimError as error:
            assert f", line {place + 1:,}: {json.loads(name)} must be a number, got 'x'" in str(error)
            found.add(json.loads(name))
    assert len(found) >= 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [VLLM, GUIDELLM, INFERENCE_PERF, AIPERF / "profile_export.jsonl", AIPERF / "profile_export_aiperf.json"],
)
def test_a_recorded_result_cut_anywhere_is_read_with_a_note_or_refused_in_one_line(tmp_path, file):
    text, counts = file.read_text(), set()
    for end in range(0, len(text.rstrip()), max(len(text) // 150, 1)):
        cut = tmp_path / file.name
        cut.write_text(text[:end])
        try:
            found = read_result(cut)
            assert found.count and any("is cut in line" in note for note in found.notes), end
            counts.add(found.count)
        except KvsimError as error:
            words = str(error)
            assert "\n" not in words and str(cut) in words and "is not valid JSON" not in words, words
    assert len(counts) >= (10 if file in (VLLM, GUIDELLM) or file.suffix == ".jsonl" else 1)


def test_columns_of_different_lengths_in_a_whole_file_are_a_mistake(tmp_path):
    file = bench_serve(tmp_path / "b.json", THREE, ttfts=[0.1, 0.2])
    with pytest.raises(KvsimError, match="must be equally long, got 2, 3"):
        read_result(file)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(KvsimError, match="cannot be read: No such file"):
        read_result(tmp_path / "none.json")
