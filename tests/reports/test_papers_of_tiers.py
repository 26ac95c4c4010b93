"""llm-d's fleet with CPU blocks below its GPUs': what agrees, and in which direction the others miss."""

import pytest

from kvsim import workloads
from kvsim.reports.papers import checks, declared, running
from kvsim.reports.papers.fleets import grouped

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def judged():
    paper = declared.read_paper("tiers")
    (figure,) = paper.figures.values()
    findings = running.carry_out_all(paper, [figure], workloads.build, quick=False, jobs=1, store=None)
    return checks.judged(paper, figure, findings)


def test_tokens_a_second_agree_where_all_fits(judged):
    assert judged.checks[0].verdict == checks.AGREES


def test_nine_of_ten_numbers_lie_between_a_router_by_prefix_and_one_by_load(judged):
    assert judged.checks[1].detail == "9 of 10"


def test_cpu_blocks_raise_throughput_and_shorten_the_wait_under_either_router(judged):
    rows = {(row.system, row.value): row for row in judged.rows if row.panel == "30,000 tokens"}
    for end in ("low", "high"):
        rates = [getattr(rows[system, "rate"], end) for system in ("HBM only", "HBM and CPU")]
        waits = [getattr(rows[system, "ttft"], end) for system in ("HBM only", "HBM and CPU")]
        assert (rates[0] < rates[1], waits[0] > waits[1]) == (True, True)


def test_each_group_has_its_prompts_and_nobody_asks_before_an_answer():
    work = grouped(groups=3, prompts=4, system=50, question=7, answer=5, clients=2)
    assert sorted(content[0][0] for content in work.content) == [0] * 4 + [1] * 4 + [2] * 4
    assert set(work.prompt_tokens.tolist()) == {57}
    assert work.waits.clients == 2


def test_with_cpu_blocks_llm_ds_router_meets_four_of_five_numbers(judged):
    met = {row.value for row in judged.rows if row.system == "HBM and CPU" and row.verdict == checks.AGREES}
    assert {"ttft", "e2e", "e2e_p90", "rate"} <= met
    assert judged.checks[2].detail == "4 of 10"
