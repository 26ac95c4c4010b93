"""Results of benchmark tools as traces: what is recognised, and what a run of them is."""

import gzip

import pytest
from support.bench_files import AIPERF, GUIDELLM, INFERENCE_PERF, VLLM, bench_serve

import kvsim
from kvsim import cli
from kvsim.sim.bench.read import read_result
from kvsim.sim.errors import KvsimError
from kvsim.workloads.formats import load_file, recognised

ROWS = [(0.5, 100, 5, 0.1, [0.02] * 4), (0.0, 50, 9, 0.1, [0.02] * 8)]


@pytest.mark.parametrize("file", [VLLM, GUIDELLM, INFERENCE_PERF, *sorted(AIPERF.glob("profile*"))], ids=str)
def test_every_tools_result_is_recognised(file):
    assert recognised(str(file)) == "benchmark result"
    assert len(load_file(str(file))) >= 12


def test_a_run_has_the_requests_that_were_measured_when_they_came(tmp_path):
    run = kvsim.simulate(trace=str(bench_serve(tmp_path / "r.json", ROWS)), model="llama-3.1-8b", gpu="l4")
    assert run.requests.prompt_tokens.tolist() == [50, 100]
    assert run.requests.arrival_s.tolist() == [0.0, 0.5]
    assert any("to compare them with simulated ones: sim replay" in note for note in run.summary["notes"])


def test_a_result_packed_by_gzip_is_read_and_another_trace_told(tmp_path):
    plain = bench_serve(tmp_path / "r.json", ROWS).read_bytes()
    (tmp_path / "r.json.gz").write_bytes(gzip.compress(plain))
    assert len(load_file(str(tmp_path / "r.json.gz"))) == 2
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(plain)[:-20])
    with pytest.raises(KvsimError, match="packed by gzip and damaged"):
        read_result(tmp_path / "cut.json.gz")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"TIMESTAMP,ContextTokens,GeneratedTokens\n"))
    with pytest.raises(KvsimError, match="is packed by gzip: unpack it first"):
        load_file(str(tmp_path / "t.csv.gz"))


def test_a_folder_of_aiperf_is_a_result_everywhere():
    assert len(load_file(str(AIPERF))) == 12
    assert kvsim.replay(AIPERF, model="llama-3.1-8b", gpu="l4").run.name == AIPERF.name


def test_sim_traces_show_points_to_replay(capsys):
    assert cli.main(["traces", "show", str(GUIDELLM)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "to compare them with simulated ones: sim replay" in out and "--clients 3" in out
