"""Prefix hits in a log become a shared prefix that gives as many; what cannot be derived is said."""

import time
from dataclasses import replace

import numpy as np
import pytest
from support.bench_files import bench_serve
from support.shared_data import shared

import kvsim
from kvsim.sim.bench.hits import Hits, hits_of, shared_prefix
from kvsim.sim.bench.measured import Requests
from kvsim.sim.bench.read import read_result
from kvsim.sim.bench.turns import SharedPrefix
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.running import read_running

SERVER = {"model": "llama-3.1-8b", "gpu": "l4", "cost": "roofline", "enable_prefix_caching": True}
BEGAN = 1_790_000_000
START = "INFO GPU KV cache size: 40,000 tokens\n"
ROWS = [(0.5 * place, 100, 11, 0.1, [0.02] * 10) for place in range(20)]


def at(seconds):
    return time.strftime("%m-%d %H:%M:%S", time.gmtime(BEGAN + seconds))


def steps(computed, hours=0):
    """One step per request that computes this many tokens of its prompt, and ten that decode."""
    lines = []
    for place, tokens in enumerate(computed):
        begin = f"(APIServer pid=1) INFO {at(3600 * hours + place // 2)} [l.py:1] Engine 000: Iteration(9): "
        end = "iteration elapsed time: 10.00 ms, GPU KV cache usage: 2.0%"
        for prompts, computes, answers in [(1, tokens, 0)] + [(0, 0, 1)] * 10:
            asked = f"{prompts} context requests, {computes} context tokens"
            lines.append(f"{begin}{asked}, {answers} generation requests, {answers} generation tokens, {end}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def run(tmp_path):
    date = time.strftime("%Y%m%d-%H%M%S", time.gmtime(BEGAN + 10))
    return bench_serve(tmp_path / "r.json", ROWS, date=date, duration=10.0)


def log_of(tmp_path, text):
    (tmp_path / "server.log").write_text(START + text)
    return tmp_path / "server.log"


@pytest.mark.parametrize("hours", [0, 9, -3])
def test_the_part_of_a_log_that_is_the_runs_is_found_in_any_time_zone(run, tmp_path, hours):
    computed = [100] * 4 + [36] * 16
    log = log_of(tmp_path, steps([100] * 5, hours - 11) + steps(computed, hours))
    assert hits_of(read_result(run), read_running(log)) == Hits(2000, 16 * 64)


def test_statistics_tell_the_same_where_no_steps_are_logged(run, tmp_path):
    rate = "Engine 000: Avg prompt throughput: 97.6 tokens/s, Avg generation throughput: 22.0 tokens/s"
    end = "Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 51.2%"
    lines = [f"INFO {at(second)} [loggers.py:259] {rate}, {end}\n" for second in range(10)]
    assert hits_of(read_result(run), read_running(log_of(tmp_path, "".join(lines)))) == Hits(2000, 1024)


@pytest.mark.parametrize("before", [0, 20])
def test_a_release_whose_prompt_throughput_counts_all_tokens_tells_by_its_hit_rate(run, tmp_path, before):
    """20 requests with 40 % found, after 20 with none: the rate of both is 20 %."""
    told = [(-60 + second, 0.0) for second in range(before // 2)]
    told += [(second, 40.0 if not before else 20.0) for second in range(10)]
    rate = "Engine 000: Avg prompt throughput: 200.0 tokens/s, Avg generation throughput: 22.0 tokens/s"
    end = "Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate:"
    log = "".join(f"INFO {at(second)} [loggers.py:118] {rate}, {end} {rates}%\n" for second, rates in told)
    assert hits_of(read_result(run), read_running(log_of(tmp_path, log))) == Hits(2000, 800)


def test_hits_become_the_shortest_prefix_that_can_give_them(run):
    found = read_result(run)
    assert shared_prefix(found, Hits(2000, 16 * 64), 16) == SharedPrefix(4, 64)
    assert shared_prefix(found, Hits(2000, 19 * 80), 16) == SharedPrefix(1, 80)
    assert shared_prefix(found, Hits(2000, 48), 16) is None


def test_a_replay_has_the_hits_of_the_log(run, tmp_path):
    log = log_of(tmp_path, steps([100] * 4 + [36] * 16))
    replay = kvsim.replay(run, log=log, **SERVER)
    assert replay.found.summary["engine"]["prefix_hit_tokens"] == pytest.approx(1024, rel=0.1)
    assert any("1,024 of 2,000 prompt tokens, 51.2 %" in note for note in replay.notes())
    for asked, hits in (("none", 0), ("1x32", 19 * 32)):
        other = kvsim.replay(run, log=log, shared_prefix=asked, **SERVER)
        assert other.found.summary["engine"]["prefix_hit_tokens"] == hits
    off = kvsim.replay(run, log=log, **SERVER | {"enable_prefix_caching": False})
    assert not off.found.summary["engine"]["prefix_hit_tokens"]
    changed = kvsim.replay(run, log=log, what_if="rate_scale=2", **SERVER).changed
    assert changed.summary["engine"]["prefix_hit_tokens"] > 900


def test_a_hit_rate_of_an_unknown_time_is_a_warning(tmp_path):
    rate = "Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 2.0 tokens/s"
    end = "Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 41.5%"
    line = f"INFO {at(0)} {rate}, {end}\n"
    replay = kvsim.replay(bench_serve(tmp_path / "r.json", ROWS), log=log_of(tmp_path, line), **SERVER)
    assert any("up to 41.5 %" in note and "--shared-prefix GxT" in note for note in replay.notes())


@pytest.mark.parametrize("text", ["6", "0x5", "5x0", "6x256:1.2", "x", "-1x5"])
def test_what_is_no_shared_prefix(run, text):
    with pytest.raises(KvsimError, match="shared_prefix must be GROUPSxTOKENS"):
        kvsim.replay(run, shared_prefix=text, **SERVER)


# -- a server that really ran ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "share", "prefix"), [("smallpc-prefix", 0.759, (6, 256)), ("big-prefix", 0.852, (5, 512))]
)
def test_the_prefixes_of_real_runs_are_found(name, share, prefix):
    run = read_result(shared(f"data/live/vllm/{name}.json.gz"))
    log = read_running(shared(f"data/live/logs/{name.partition('-')[0]}.server.log.gz"))
    hits = hits_of(run, log)
    assert hits.share == pytest.approx(share, abs=5e-4)
    found = shared_prefix(run, hits, 32 if name.startswith("small") else 128)
    assert found.tokens == prefix[1] and found.groups <= prefix[0] + 2


@pytest.mark.parametrize("name", ["big-r8", "big-c16", "comp-ramp"])
def test_real_runs_without_prefixes_have_none(name):
    run = read_result(shared(f"data/live/vllm/{name}.json.gz"))
    log = read_running(shared(f"data/live/logs/{name.partition('-')[0]}.server.log.gz"))
    hits = hits_of(run, log)
    assert hits is not None and shared_prefix(run, hits, 128) is None


# -- requests that a time limit cut ----------------------------------------------------------------


def cut_at_the_end(run, prompt, answer, times):
    """The run with this many more requests, cut by the time limit."""
    columns = (np.full(times, each, dtype=np.int64) for each in (prompt, answer))
    none = np.full(times, np.nan)
    cut = Requests(np.full(times, 9.0), *columns, none, none)
    return replace(read_result(run), cut=cut, cut_count=times)


def test_what_cut_requests_were_given_is_in_the_log_and_not_in_the_result(run, tmp_path):
    text = steps([100] * 20) + steps([100] * 4)  # 264 tokens of answers; the result holds 220
    log = read_running(log_of(tmp_path, text))
    assert hits_of(read_result(run), log) is None
    assert hits_of(cut_at_the_end(run, 100, 0, 4), log) == Hits(2400, 0)
    assert hits_of(cut_at_the_end(run, 100, 11, 4), log) == Hits(2400, 0)


def test_prompts_of_cut_requests_that_may_not_have_been_computed_are_no_hits(run, tmp_path):
    log = read_running(log_of(tmp_path, steps([100] * 20)))
    assert hits_of(cut_at_the_end(run, 100, 0, 1), log) == Hits(2100, 100)  # too few to matter
    assert hits_of(cut_at_the_end(run, 500, 0, 1), log) is None  # 20 %, found or not begun


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_real_run_that_a_time_limit_cut_is_found_in_its_log(number):
    """The second sent all at once on two busy cores: its steps took 1.5 times as long as the others'."""
    replay = kvsim.replay(
        shared("data/live/guidellm/comp-guide.benchmarks.json.gz"),
        log=shared("data/live/logs/comp.server.log.gz"),
        model=str(shared("data/live/model/config.json")),
        gpu=str(shared("data/live/profiles/two-cpu-cores.toml")),
        run=number,
    )
    notes = " ".join(replay.notes())
    assert "to those of this run" in notes and "hit rate" not in notes
    off = replay.table.set_index(["what", "statistic"]).off
    assert abs(off["requests", "per s"]) < 0.1 and abs(off["TPOT", "mean"]) < 0.1  # +62 and -27 % before
