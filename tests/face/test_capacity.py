"""`sim capacity` and `kvsim.capacity`: the answer holds when it is simulated by itself."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.sheets import assert_within

import kvsim
from kvsim.cli import main
from kvsim.commands.capacity_runs import Sought, searched
from kvsim.reports.figures.style import STYLES
from kvsim.reports.figures.swept.capacity import capacity
from kvsim.reports.sweeps.capacity_words import beside
from kvsim.sim.options.goals import Goals

pytestmark = pytest.mark.slow

SLO = "ttft:p99=1s,tpot:p99=50ms"
FEW = {"num_prompts": 100, "seeds": 2, "jobs": 1, "tolerance": 0.1}
FLAGS = ["--num-prompts", "100", "--seeds", "2", "--jobs", "1", "--tolerance", "0.1", "--no-plots"]


@pytest.fixture(scope="module")
def found():
    return kvsim.capacity(slo=SLO, allocator=["contiguous", "paged"], **FEW)


def test_paging_carries_more(found):
    assert list(found.allocator) == ["contiguous", "paged"]
    contiguous, paged = found.requests_per_s
    assert paged > 2 * contiguous > 0
    assert (found.requests_per_s_low <= found.requests_per_s).all()
    assert found.limited_by.str.contains("KV memory full").all()
    assert (found.gpus == 1).all() and (found.seeds == 2).all()


def test_the_command_says_the_same(found, tmp_path, capsys):
    flags = ["--allocator", "contiguous,paged", "--slo", SLO, *FLAGS, "--out", str(tmp_path / "out")]
    assert main(["capacity", *flags]) == 0
    assert "paged has the highest capacity per GPU within" in capsys.readouterr().out
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out/table.parquet"), found)
    before = (tmp_path / "out/runs.jsonl").read_bytes()
    assert main(["capacity", *flags]) == 0
    assert (tmp_path / "out/runs.jsonl").read_bytes() == before, "nothing is sought twice"


def test_tokens_and_price_are_of_the_same_steady_window_as_the_rate():
    rate = {"input_len": "50", "output_len": "40", "trace": "synthetic", "cost": "constant:0.02"}
    found = kvsim.capacity(slo="ttft:p99=1s", gpu_price=3.6, max_num_seqs=8, **rate, **FEW).iloc[0]
    assert found.output_tokens_per_s_per_gpu == pytest.approx(40 * found.requests_per_s)
    assert found.price_per_million_output_tokens == pytest.approx(1e3 / (40 * found.requests_per_s))


@pytest.mark.parametrize("where", [{}, {"pool": "both:4:gpu=h100"}], ids=["equal", "pool"])
def test_a_fleet_that_scales_is_counted_and_paid_while_it_is_billed(where, tmp_path, capsys):
    """Two of four replicas that are always on are a fleet of two."""
    served = {"trace": "synthetic", "input_len": "50", "output_len": "40", "cost": "constant:0.02"}
    served |= {"slo": "ttft:p99=2s", "max_num_seqs": 8, "gpu_price": 3.6}
    two = kvsim.capacity(**served, replicas=2, **FEW).iloc[0]
    where = where or {"replicas": 4}
    some = kvsim.capacity(**served, **where, scale="schedule:0=2", **FEW).iloc[0]
    assert (two.gpus, some.gpus, some.gpus_of_all) == (2, 2, 4)
    for name in ("requests_per_s", "requests_per_s_per_gpu", "price_per_million_output_tokens"):
        assert some[name] == pytest.approx(two[name])


def test_an_answer_is_confirmed_by_long_runs_with_fresh_seeds():
    """M/D/1 with services of one second: 99 % wait at most 29 s at a load of 0.9236."""
    md1 = {"trace": "synthetic", "input_len": "1", "output_len": "1", "max_num_seqs": 1, "cost": "constant:1"}
    md1 |= {"frontend_latency": 0.0, "scheduler": "vllm-v1@0.11.0"}
    row, _ = searched(md1, 0, Goals(slo="ttft:p99=30s"), Sought("rate", 0.02))
    assert row["at_load"]["requests"] == 64_000, "near saturation a run has to be long"
    assert 0.90 < row["load"] < 0.945, "runs of 1,000 requests found 0.956 with this seed"
    assert row["load"] <= row["edge"] <= row["above"]["load"]


def test_an_answer_says_what_it_assumes_in_text_table_and_picture(found, tmp_path, capsys):
    row = found.iloc[1]
    assert (row.trace, row.arrivals, row.max_num_seqs) == ("sharegpt", "Poisson arrivals", 256)
    assert row.kv_tokens == kvsim.simulate(num_prompts=10).config["kv_capacity"]["tokens"]
    flags = ["--max-num-seqs", "64,128", "--slo", SLO, *FLAGS[:-1], "--out", str(tmp_path / "out")]
    assert main(["capacity", *flags]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Assumed: sharegpt, prompts of .*, Poisson arrivals; .*, 64 or 128 seats, ", said)
    assert "no prefix cache" in said and "Clock: " in said and "not validated" in said
    rows, labels = pd.read_parquet(tmp_path / "out/table.parquet").to_dict("records"), ["a", "b"]
    for style in STYLES.values():
        figure = capacity(rows, labels, ("requests_per_s", "requests/s"), "", beside(rows), style)
        assert figure.get_supxlabel().startswith("Assumed: sharegpt") and "Clock: " in figure.get_supxlabel()
        assert_within(figure)


def test_the_answer_holds_when_it_is_simulated(found):
    """A little below it the SLO is met over the whole run, a little above it is not, in the mean."""
    rate = found.requests_per_s[1]
    options = {"num_prompts": 2000, "shuffle": True, "slo": SLO}
    below = [kvsim.simulate(request_rate=0.8 * rate, seed=seed, **options) for seed in range(5, 8)]
    above = [kvsim.simulate(request_rate=1.3 * rate, seed=seed, **options) for seed in range(5, 8)]
    assert sum(run.summary.slo.met for run in below) >= 2
    assert sum(run.summary.slo.met for run in above) == 0


def test_clients_are_whole_and_a_looser_limit_carries_more():
    few = kvsim.capacity(slo="tpot:p90=26ms", find="clients", **FEW)
    more = kvsim.capacity(slo="tpot:p90=32ms", find="clients", **FEW)
    assert 1 <= few.clients[0] < more.clients[0]


def test_an_slo_that_no_rate_meets_says_where_it_came_closest(tmp_path, capsys):
    flags = ["--slo", "ttft:p99=1ms", "--find", "clients", *FLAGS, "--out", str(tmp_path / "out")]
    assert main(["capacity", *flags]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert " meets ttft:p99=1ms at no load" in said and "No load meets it; even at" in said


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        ([], "slo must be given"),
        (["--slo", SLO, "--request-rate", "2"], "request_rate must be left out"),
        (["--slo", SLO, "--model", "llama-3.1-70b"], "none of the 1 systems can be"),
        (["--slo", SLO, "--tolerance", "0"], "tolerance must be"),
        (["--slo", SLO, "--find", "clients", "--for-rate", "5"], "for_rate must be left out"),
        (["--slo", SLO, "--more-kv", "-1"], "more_kv must be above 0"),
    ],
)
def test_what_cannot_be_sought_is_one_line(flags, complaint, capsys):
    assert main(["capacity", "--max-num-seqs", "128", *flags]) == 2
    assert complaint in capsys.readouterr().err.splitlines()[-1]


def test_a_dry_run_says_how_many_searches_there_are(tmp_path, capsys):
    flags = ["--slo", SLO, "--max-num-seqs", "64,128", *FLAGS, "--dry-run", "--out", str(tmp_path / "out")]
    assert main(["capacity", *flags]) == 0
    assert capsys.readouterr().out.startswith("2 systems, 4 searches: about ")
    assert not (tmp_path / "out").exists()


def test_more_memory_carries_more_where_memory_is_the_limit():
    found = kvsim.capacity(slo="ttft:p99=1s", kv_tokens=4000, more_kv=4, **{**FEW, "seeds": 1})
    assert found.more_kv_gain_percent[0] > 20


# -- traces at their own times, runs that fail, an SLO that is not met --------------------------------


@pytest.fixture(scope="module")
def own_times(tmp_path_factory):
    """A trace of 600 requests that come at 1 a second."""
    rng = np.random.default_rng(0)
    arrival_s = np.cumsum(rng.exponential(1.0, 600))
    path = tmp_path_factory.mktemp("traces") / "own.csv"
    rows = zip(arrival_s, rng.integers(20, 200, 600), rng.integers(20, 200, 600), strict=True)
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{s:.3f},{p},{o}\n" for s, p, o in rows)
    )
    return str(path)


def test_a_trace_at_its_own_times_is_sped_up_until_it_misses(own_times):
    """What comes out is what a run of the trace at that speed says, a little below one that misses."""
    (found,) = kvsim.capacity(slo=SLO, trace=own_times, tolerance=0.05).itertuples()
    assert found.status == "met" and found.seeds == 1, "nothing is drawn, so one seed tells all"
    assert found.requests_per_s == pytest.approx(found.speed_of_trace, rel=0.1), "it comes at 1 a second"
    (scale,) = kvsim.capacity(slo=SLO, trace=own_times, find="rate-scale", tolerance=0.05).rate_scale
    assert scale == pytest.approx(found.speed_of_trace)
    assert kvsim.simulate(trace=own_times, rate_scale=scale, slo=SLO).summary.slo.met
    assert not kvsim.simulate(trace=own_times, rate_scale=1.05 * scale, slo=SLO).summary.slo.met


def test_a_trace_that_misses_at_any_speed_is_said_to_be_judged_whole_too(own_times, tmp_path, capsys):
    flags = ["--trace", own_times, "--slo", "ttft:p99=1us", *FLAGS, "--out", str(tmp_path / "out")]
    assert main(["capacity", *flags]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "No load meets it" in said and "judged whole, as in sim run" in said and "steady" not in said


def test_clients_draw_on_where_a_trace_ends_and_this_is_said(own_times, tmp_path, capsys):
    flags = ["--trace", own_times, "--slo", "tpot:p90=40ms", "--find", "clients", "--num-prompts", "700"]
    flags += [*FLAGS[2:], "--out", str(tmp_path / "out")]
    assert main(["capacity", *flags]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert " clients within tpot:p90=40ms" in said
    assert re.search(r"[\d,]+ rows drawn with replacement from the 600 of own", said)


def test_a_search_that_fails_is_an_error(tmp_path, capsys):
    flags = ["--slo", SLO, "--max-model-len", "16", "--trace", "synthetic", *FLAGS]
    assert main(["capacity", *flags, "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr()
    assert "No system meets" not in told.out
    assert told.err.splitlines()[-1] == (
        "error: failed: a100-40gb: no request finishes, so there is no load to look for"
    )
    with pytest.raises(kvsim.KvsimError, match="no request finishes"):
        kvsim.capacity(slo=SLO, max_model_len=16, trace="synthetic", **FEW)


def test_other_answers_stand_beside_a_search_that_fails(tmp_path, capsys):
    flags = ["--slo", SLO, "--max-model-len", "16,2048", *FLAGS, "--out", str(tmp_path / "out")]
    assert main(["capacity", "--trace", "synthetic", *flags]) == 1
    told = capsys.readouterr()
    assert "highest capacity per GPU" in told.out and "failed: max model len 16: no request" in told.err
    table = pd.read_parquet(tmp_path / "out/table.parquet")
    assert list(table.status) == ["failed", "met"]


def test_an_slo_that_is_not_met_has_an_exit_code_of_its_own(tmp_path, capsys):
    flags = ["--slo", "ttft:p99=1ms", *FLAGS, "--out", str(tmp_path / "out")]
    assert main(["capacity", *flags]) == 0
    assert main(["capacity", *flags, "--fail-unmet"]) == 3
    swept = ["--slo", "ttft:p99=1ms", "--request-rate", "1,2", "--num-prompts", "50", "--no-plots"]
    assert main(["sweep", *swept, "--fail-unmet", "--out", str(tmp_path / "swept")]) == 3


def test_only_a_trace_that_tells_times_has_a_speed(capsys):
    assert main(["capacity", "--slo", SLO, "--find", "rate-scale", *FLAGS]) == 2
    assert "find must be rate or clients for requests that come at no" in capsys.readouterr().err


def test_what_the_coverage_benchmark_searches_can_be_simulated():
    path = Path(__file__).resolve().parents[2] / "benchmarks/capacity_coverage.py"
    spec = importlib.util.spec_from_file_location("capacity_coverage", path)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    assert benchmark.md1_truth() == pytest.approx(0.9236, abs=5e-5)
    for settings, slo in benchmark.CASES.values():
        assert kvsim.simulate(**settings, num_prompts=20, request_rate=0.5, slo=slo).summary.slo.met
