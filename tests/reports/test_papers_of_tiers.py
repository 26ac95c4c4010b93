"""Published figures of tiers: what agrees, and in which direction the others miss."""

import json

import numpy as np
import pytest

from kvsim import cli, workloads
from kvsim.reports.papers import checks, declared, running
from kvsim.reports.papers.copies import copies
from kvsim.reports.papers.endless import found_percent
from kvsim.reports.papers.fleets import grouped
from kvsim.sim.workload import Workload
from kvsim.workloads import catalogue
from kvsim.workloads.miss_ratio import miss_ratio

PAPER = declared.read_paper("tiers")


def verdicts(number):
    figure = PAPER.figures[number]
    findings = running.carry_out_all(PAPER, [figure], workloads.build, quick=False, jobs=1, store=None)
    return checks.judged(PAPER, figure, findings)


# -- llm-d's fleets ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judged():
    return verdicts("1")


@pytest.mark.slow
def test_tokens_a_second_agree_where_all_fits(judged):
    assert judged.checks[0].verdict == checks.AGREES


@pytest.mark.slow
def test_nine_of_ten_numbers_lie_between_a_router_by_prefix_and_one_by_load(judged):
    assert judged.checks[1].detail == "9 of 10"


@pytest.mark.slow
def test_cpu_blocks_raise_throughput_and_shorten_the_wait_under_either_router(judged):
    rows = {(row.system, row.value): row for row in judged.rows if row.panel == "30,000 tokens"}
    for end in ("low", "high"):
        rates = [getattr(rows[system, "rate"], end) for system in ("HBM only", "HBM and CPU")]
        waits = [getattr(rows[system, "ttft"], end) for system in ("HBM only", "HBM and CPU")]
        assert (rates[0] < rates[1], waits[0] > waits[1]) == (True, True)


@pytest.mark.slow
def test_with_cpu_blocks_llm_ds_router_meets_four_of_five_numbers(judged):
    met = {row.value for row in judged.rows if row.system == "HBM and CPU" and row.verdict == checks.AGREES}
    assert {"ttft", "e2e", "e2e_p90", "rate"} <= met
    assert judged.checks[2].detail == "4 of 10"


@pytest.fixture(scope="module")
def storage():
    return verdicts("2")


@pytest.mark.slow
def test_above_storage_all_twenty_numbers_agree(storage):
    assert [check.detail for check in storage.checks] == ["10 of 10", "10 of 10"]
    assert storage.verdict == checks.AGREES


@pytest.mark.slow
def test_storage_saves_nearly_every_prompt_and_reads_beside_steps_save_time_as_well(storage):
    for panel in ("50,000 tokens", "70,000 tokens"):
        rows = {(row.system, row.value): row.simulated for row in storage.rows if row.panel == panel}
        assert rows["CPU", "computed"] > 2_400
        assert 4 * 50 <= rows["CPU and Lustre", "computed"] < 220
        rates = [rows[system, "rate"] for system in ("CPU", "CPU and Lustre", "read beside steps")]
        assert rates == sorted(rates)


def test_each_group_has_its_prompts_and_nobody_asks_before_an_answer():
    work = grouped(groups=3, prompts=4, system=50, question=7, answer=5, clients=2)
    assert sorted(content[0][0] for content in work.content) == [0] * 4 + [1] * 4 + [2] * 4
    assert set(work.prompt_tokens.tolist()) == {57}
    assert work.waits.clients == 2


def test_more_requests_than_prompts_begin_again_with_the_first():
    once, more = (
        grouped(groups=3, prompts=4, system=50, question=7, answer=5, clients=2, requests=count)
        for count in (None, 15)
    )
    assert more.content == [*once.content, *once.content[:3]]


# -- copies -----------------------------------------------------------------------------------------


def test_one_way_agrees_and_both_ways_at_once_are_too_fast():
    found = verdicts("3")
    assert [check.verdict for check in found.checks] == [checks.AGREES, checks.MISSES]
    one_way, *both = (row.simulated for row in found.rows)
    assert both == pytest.approx([2 * one_way] * 2)


def test_a_link_as_fast_as_half_of_both_ways_meets_them():
    arguments = {"model": "llama-3.1-8b", "gpu": "h100", "blocks": 1_000}
    assert copies(**arguments, link="41.7", ways=2)["rate"] == pytest.approx(83.4, rel=1e-3)
    assert copies(**arguments, link="10:40", ways=2)["rate"] == pytest.approx(20, rel=1e-3), "the later one"


# -- an endless cache -------------------------------------------------------------------------------


def test_an_endless_cache_finds_what_the_curve_of_all_sizes_ends_at():
    lengths = workloads.load("agents")
    work = workloads.build("agents", num_prompts=None, request_rate=None, burstiness=None, seed=0)
    assert found_percent(work, 512) == pytest.approx(100 * miss_ratio(lengths, 512).ceiling)


def test_what_is_found_is_counted_in_prompts_and_behind_the_same_beginning():
    texts = [((1, 0, 64), (2, 0, 32)), ((1, 0, 64), (3, 0, 32)), ((3, 0, 32),), ((1, 0, 96),)]
    tokens = np.array([96, 96, 32, 40], dtype=np.int64)
    work = Workload("four", np.zeros(4, dtype=np.int64), tokens, np.full(4, 60), content=texts)
    assert found_percent(work, 16) == pytest.approx(
        100 * (4 + 2) * 16 / 264
    )  # the fourth: 40 tokens, two blocks


def reproduce(figures, out):
    return cli.main(["reproduce", "tiers", "--figure", figures, "--jobs", "1", "--out", str(out)])


def said(capsys):
    return " ".join(capsys.readouterr().out.split())


def test_without_its_traces_a_figure_is_left_out_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(catalogue, "directory", lambda: tmp_path)
    assert reproduce("3,4", tmp_path / "a") == 0
    assert "Left out, until fetched: Figure 4, sim traces fetch qwen-chat, qwen-api" in said(capsys)
    found = json.loads((tmp_path / "a" / "results.json").read_text())
    assert [figure["figure"] for figure in found["figures"]] == ["3"]
    assert reproduce("4", tmp_path / "b") == 2
    assert "sim traces fetch qwen-chat" in capsys.readouterr().err


def test_one_of_two_traces_is_half_of_the_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(catalogue, "directory", lambda: tmp_path)
    lines = [
        {"chat_id": chat, "parent_chat_id": -1, "timestamp": float(chat), "input_length": 64}
        | {"output_length": 9, "type": "text", "turn": 1, "hash_ids": ids}
        for chat, ids in enumerate(([0, 1, 2, 3], [0, 1, 4, 5]))
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    catalogue.entries()["qwen-chat"].path.write_text(text)
    assert reproduce("4", tmp_path / "a") == 0
    assert "Left out, until fetched: Figure 4, sim traces fetch qwen-api" in said(capsys)
    (figure,) = json.loads((tmp_path / "a" / "results.json").read_text())["figures"]
    (row,) = figure["rows"]
    assert (row["panel"], row["simulated"], figure["verdict"]) == ("Trace A", 25.0, checks.MISSES)
