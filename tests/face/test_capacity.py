"""`sim capacity` and `kvsim.capacity`: the answer holds when it is simulated by itself."""

import pandas as pd
import pytest

import kvsim
from kvsim.cli import main

pytestmark = pytest.mark.slow

SLO = "ttft:p99=1s,tpot:p99=50ms"
FEW = {"num_prompts": 300, "seeds": 2, "jobs": 1, "tolerance": 0.1}
FLAGS = ["--num-prompts", "300", "--seeds", "2", "--jobs", "1", "--tolerance", "0.1", "--no-plots"]


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
    assert "paged carries most per GPU within" in capsys.readouterr().out
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out/table.parquet"), found)
    before = (tmp_path / "out/runs.jsonl").read_bytes()
    assert main(["capacity", *flags]) == 0
    assert (tmp_path / "out/runs.jsonl").read_bytes() == before, "nothing is sought twice"


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
    assert "No system meets ttft:p99=1ms" in said and "met at no load; closest at" in said


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
    assert capsys.readouterr().out.startswith("2 systems, 4 searches of about 10 runs: about ")
    assert not (tmp_path / "out").exists()


def test_more_memory_carries_more_where_memory_is_the_limit():
    found = kvsim.capacity(slo="ttft:p99=1s", kv_tokens=4000, more_kv=4, **{**FEW, "seeds": 1})
    assert found.more_kv_gain_percent[0] > 20
