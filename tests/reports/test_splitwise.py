"""Splitwise's clusters: step times as in its simulator, closed forms of what binds, verdicts."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import kvsim
from kvsim import cli, workloads
from kvsim.reports.palette import figures
from kvsim.reports.papers import checks, declared, running
from kvsim.reports.papers.series import all_series
from kvsim.reports.papers.served import cluster_of
from kvsim.sim.build import build_engine
from kvsim.sim.contract import check_scheduler
from kvsim.sim.cost.dgx import RULES, Machine
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.schedulers.mixed_batching import MixedBatching
from kvsim.sim.workload import Workload

PAPER = declared.read_paper("splitwise")
MS, S = 1e9, 1e12
CONVERSATION = "iso-power, conversation"


def cluster(panel, system, figure="18", requests=500):
    """A cluster of the paper, with shorter runs."""
    found = all_series(PAPER, PAPER.figures[figure], quick=False)
    one = next(each for each in found if (each.panel, each.system, each.choice) == (panel, system, ""))
    return cluster_of(one.cell["arguments"], one.settings, requests)


def machine(rule="batch", gpu="a100-80gb", model="bloom-176b"):
    """The step times of a machine."""
    server = cluster(CONVERSATION, "Baseline-A100").fleet
    return Machine(rule, replace(server, gpu=gpu_named(gpu), model=model_named(model)))


# -- step times: medians of perf_model.csv, put together by hand ---------------------------------------------


def test_prompts_lie_on_the_line_between_two_points():
    by_hand_ms = 287.467 + (1_500 - 1_024) / 1_024 * (536.055 - 287.467)
    shape = StepShape(prefill_tokens=1_500, prefill_pairs=1_500 * 1_501 // 2, prefill_seqs=1)
    assert machine().step_ps(shape) / MS == pytest.approx(by_hand_ms)


def test_decodes_beside_prompts_make_the_step_a_tenth_longer():
    shape = StepShape(prefill_tokens=1_000, prefill_seqs=1, decode_seqs=24, context_tokens=24_000)
    assert machine().step_ps(shape) / MS == pytest.approx(1.1 * 287.467)


def test_64_decodes_cost_what_one_does_or_what_was_measured_of_their_contexts():
    shape = StepShape(decode_seqs=64, context_tokens=64 * 512)
    by_hand_ms = 47.6121 - 64 / 128 * (47.7067 - 47.6121)
    assert machine("batch").step_ps(shape) / MS == pytest.approx(by_hand_ms)
    assert machine("context").step_ps(shape) / MS == pytest.approx(96.583)


def test_beyond_the_last_point_its_line_goes_on():
    shape = StepShape(decode_seqs=40, context_tokens=40_960)
    assert machine("context").step_ps(shape) / MS == pytest.approx(96.583 + (96.583 - 65.3805) / 2)


@pytest.mark.parametrize(("rule", "contexts"), [("batch", 9_000), ("context", 32_730), ("context", 110)])
def test_time_outside_the_points_is_counted_alike_in_steps_and_spans(rule, contexts):
    """By batch 7 decodes are 7 tokens; by context six steps cross the last point, or the first."""
    steps, span = machine(rule), machine(rule)
    ends = np.cumsum(steps.span_ps(7, contexts, 12)).tolist()
    for step, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        steps.carried_out(StepShape(decode_seqs=7, context_tokens=contexts + 7 * step), end - begin)
    span.span_carried_out(7, contexts, ends)
    beyond = {9_000: ends[-1], 32_730: ends[-1] - ends[5], 110: ends[2]}[contexts]
    assert steps.extrapolated_share == span.extrapolated_share == beyond / ends[-1]
    within = StepShape(prefill_tokens=1_000, prefill_seqs=1)
    steps.carried_out(within, steps.step_ps(within))
    assert steps.extrapolated_share < span.extrapolated_share
    assert machine(rule).outside() == [] and "fewer than 128 or more than 32,768" in span.outside()[0]


def test_a_run_reports_the_share_of_its_time_outside_the_points():
    """Forty requests never decode 128 at once: by batch all but a few prompts lie before the first point."""
    asked = {"model": "bloom-176b", "gpu": "h100", "tensor_parallel_size": 8, "num_prompts": 40}
    by_batch, by_context = (kvsim.simulate(**asked, cost=f"dgx-isca24:{rule}").summary for rule in RULES)
    assert by_batch.cost.extrapolated_share > 0.9 > by_context.cost.extrapolated_share > 0
    assert any("steps of fewer than 128 or more than 32,768 prompt tokens" in note for note in by_batch.notes)


@pytest.mark.parametrize("rule", RULES)
def test_a_span_is_its_steps(rule):
    model, shape = machine(rule, "h100"), StepShape(decode_seqs=7, context_tokens=8_180)
    steps = [model.step_ps(shape._replace(context_tokens=8_180 + 7 * step)) for step in range(5)]
    assert list(model.span_ps(7, 8_180, 5)) == steps


def test_a_prompt_of_which_one_token_is_left_is_a_decode():
    model = machine("context")
    handed_over = StepShape(
        prefill_tokens=1, prefill_pairs=700, prefill_seqs=1, decode_seqs=3, context_tokens=900
    )
    assert model.step_ps(handed_over) == model.step_ps(StepShape(decode_seqs=4, context_tokens=1_600))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": model_named("opt-13b")}, "model must be one of bloom-176b, llama-2-70b"),
        ({"gpu": gpu_named("l4")}, "gpu must be one of a100-80gb, h100 with cost dgx-isca24, got l4"),
        ({"tensor_parallel_size": 4}, "tensor_parallel_size must be 8 with cost dgx-isca24, got 4"),
    ],
)
def test_what_the_profile_does_not_know_is_refused(change, words):
    server = replace(cluster(CONVERSATION, "Baseline-A100").fleet, **change)
    with pytest.raises(KvsimError, match=words):
        Machine("batch", server)
    with pytest.raises(KvsimError, match=r"cost must be dgx-isca24:batch or dgx-isca24:context, got"):
        Machine("tokens", server)


# -- mixed batching ------------------------------------------------------------------------------------------


def test_mixed_batching_keeps_the_contract_of_schedulers():
    check_scheduler(MixedBatching)


def test_a_prompt_that_leaves_the_decodes_no_room_is_computed_alone():
    """Of 20 decodes and prompts of 700, 1,200 and 3,000: 1,900 with them, then 3,000 without."""
    lone = cluster("coding", "Baseline-A100", "4").fleet
    prompts = np.array([10] * 20 + [700, 1_200, 3_000])
    arrival_ps = np.array([0] * 20 + [1] * 3, dtype=np.int64)
    work = Workload("three prompts", arrival_ps, prompts, np.full(23, 9))
    result = build_engine(lone, work, step_log=True).run()
    steps = result.steps
    assert steps["prefill_tokens"][:3].tolist() == [200, 1_900, 3_000]
    assert steps["decode_tokens"][:4].tolist() == [0, 20, 0, 23]


# -- what is run ---------------------------------------------------------------------------------------------

POWER = {"a100-80gb": 24.8, "h100": 44.0}
PRICE = {"a100-80gb": 2.21, "h100": 4.76}


def spent(panel, system, per_machine, capped=1.0):
    """Cost or power of a cluster, in the units of utils.py."""
    pools = cluster(panel, system).fleet.every_pool
    return sum(
        each.replicas * per_machine[each.server.gpu.name] * (capped if each.role == "decode" else 1.0)
        for each in pools
    )


@pytest.mark.parametrize("panel", [CONVERSATION, "iso-power, coding"])
def test_clusters_of_equal_power_have_that_of_40_h100(panel):
    for system in PAPER.figures["18"].panels[panel]["systems"]:
        power = spent(panel, system, POWER, 0.7 if system == "Splitwise-HHcap" else 1.0)
        assert 40 * 44 * 0.98 < power <= 40 * 44, system


def test_cost_is_as_the_checks_say():
    h100 = spent(CONVERSATION, "Baseline-H100", PRICE)
    assert spent(CONVERSATION, "Splitwise-HA", PRICE) / h100 == pytest.approx(0.93, abs=0.005)
    assert spent(CONVERSATION, "Splitwise-AA", PRICE) / h100 == pytest.approx(0.81, abs=0.005)
    assert spent("iso-cost, conversation", "Splitwise-AA", PRICE) / h100 == pytest.approx(1.0, abs=0.005)


def test_a_request_alone_has_no_slowdown_but_that_of_the_table():
    """A decode alone takes 47.5 ms, its measure a little more: the table at the tokens of its prompt."""
    idle = cluster(CONVERSATION, "Baseline-A100").slowdowns(rate=0.5)
    first, token, end = np.quantile(idle, (0.5, 0.9), axis=1).T
    assert first == pytest.approx([1, 1], abs=1e-6)
    assert (token < 1).all() and (end < 1).all()


def seconds(system, role=0):
    """Mean seconds of the prompts on one of its machines, of those beside decodes; the share of these."""
    one = cluster(CONVERSATION, system)
    prompts = one.lengths[0]
    times_s = (
        np.array([Machine("batch", one.fleet.every_pool[role].server).prompt_ps(n) for n in prompts]) / S
    )
    beside = prompts + 10 <= 2_048
    return times_s.mean(), (times_s * np.where(beside, 1.1, 1.0)).mean(), beside.mean()


@pytest.mark.slow
@pytest.mark.parametrize(("system", "machines"), [("Splitwise-AA", 45), ("Splitwise-HA", 25)])
def test_prompt_machines_carry_at_most_what_their_step_times_allow(system, machines):
    most = machines / seconds(system)[0]
    found, _ = cluster(CONVERSATION, system, requests=2_000).rate(
        PAPER.figures["18"].settings["limits"], 0.85 * most
    )
    assert 0.75 * most < found < most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "machines", "requests_s"), [("Baseline-A100", 70, 45), ("Baseline-H100", 40, 90)]
)
def test_prompts_of_others_stretch_the_tokens_of_a_baseline(system, machines, requests_s):
    """Of r prompts a second and machine, each takes S s, and most give the others a token. Those that come
    together share a step, so a token takes a little less than with prompts one at a time."""
    one = cluster(CONVERSATION, system, requests=2_000)
    work = one._drawn(one.requests, requests_s)
    _, first_ps, end_ps = one._run(work)
    token_s = (end_ps - first_ps).sum() / S / (work.output_tokens - 1).sum()
    _, prompt_s, beside = seconds(system)
    decode_s = one.reference.token_ps(10) / S if system.endswith("A100") else 35.36e-3
    rate = requests_s / machines
    by_hand_s = 1 / ((1 - rate * prompt_s) / decode_s + rate * beside)
    assert 0.8 * by_hand_s < token_s < by_hand_s
    assert token_s > 1.15 * decode_s


@pytest.mark.slow
def test_a_quick_run_has_batch_jobs_and_requests_alone_near_the_published(tmp_path):
    figures = [PAPER.figures[number] for number in ("4", "6e")]
    findings = running.carry_out_all(PAPER, figures, workloads.build, quick=True, jobs=1, store=tmp_path)
    again = running.carry_out_all(PAPER, figures, workloads.build, quick=True, jobs=1, store=tmp_path)
    assert findings.runs == again.runs == 6
    assert findings.cpu_s == again.cpu_s  # it was kept
    batch = checks.judged(PAPER, figures[1], again)
    assert batch.verdict == checks.AGREES
    assert all(row.simulated == pytest.approx(row.published, rel=0.1) for row in batch.rows)


# -- the page and the run that it shows ----------------------------------------------------------------------

DOCS = Path(cli.__file__).resolve().parent / "docs"
PAGE = (DOCS / "reproduce.md").read_text(encoding="utf-8").split("## Splitwise")[1].split("\n## ")[0]
SHIPPED = json.loads((DOCS / "reproduce" / "splitwise.json").read_text(encoding="utf-8"))
ROWS = {
    (figure["figure"], row["panel"], row["system"], row["value"]): row
    for figure in SHIPPED["figures"]
    for row in figure["rows"]
}


def cells(begins):
    """The cells of the table row with this beginning."""
    (found,) = (each for each in PAGE.splitlines() if each.startswith(f"| {begins} |"))
    return [cell.strip() for cell in found.split("|")[2:-1]]


def told(*key):
    """A row's published and simulated values, as the page shows them."""
    row = ROWS[key]
    return f"{row['published']:#.3g} - {row['simulated']:#.3g}"


def rate(panel, system):
    """Simulated requests per second."""
    return ROWS["18", panel, system, "rate"]["simulated"]


SYSTEMS = [f"Baseline-{each}" for each in ("A100", "H100")] + [
    f"Splitwise-{each}" for each in ("AA", "HH", "HA", "HHcap")
]


def test_the_rates_of_the_page_are_those_of_the_run():
    assert cells("conversation, same power") == [figures(rate(CONVERSATION, each)) for each in SYSTEMS]
    coding = [figures(rate("iso-power, coding", each)) for each in SYSTEMS[:5]]
    assert cells("coding, same power") == [*coding, ""]
    (figure,) = (each for each in SHIPPED["figures"] if each["figure"] == "18")
    by_context = {each["system"]: each["other"] for each in figure["open_choices"]}
    assert cells("conversation, decodes by context") == [figures(by_context[each]) for each in SYSTEMS]


def test_published_beside_simulated_is_that_of_the_run():
    assert cells("Figure 12: 27 prompt and 3 token machines serve so many requests/s of coding") == [
        told("12", "coding", "Splitwise-HH", "rate")
    ]
    jobs = [told("6e", "batch jobs", f"Baseline-{each}", "per_dollar") for each in ("A100", "H100")]
    assert cells("batch jobs, requests/s per $: A100, H100") == [", ".join(jobs)]
    lead = rate("iso-cost, conversation", "Splitwise-AA") / rate("iso-cost, conversation", "Baseline-H100")
    assert cells("Figure 18, same cost: Splitwise-AA / Baseline-H100") == [f"1.40 - {lead:#.3g}"]
    for begins, published, of, over in (
        ("Figure 18, same power: Splitwise-AA / Baseline-A100", 2.15, "Splitwise-AA", "Baseline-A100"),
        ("Figure 18, same power: Splitwise-HA / Baseline-H100", 1.18, "Splitwise-HA", "Baseline-H100"),
        ("Abstract, 19 % less cost: Splitwise-AA / Baseline-H100", 1.4, "Splitwise-AA", "Baseline-H100"),
    ):
        ratio = rate(CONVERSATION, of) / rate(CONVERSATION, over)
        assert cells(begins) == [f"{published:#.3g} - {ratio:#.3g}"]


def test_the_table_of_requests_alone_is_that_of_the_run():
    for value, begins in (
        ("ttft", "Table IV, Llama-70B, first token: coding on A100, H100; conversation"),
        ("tbt", "Table IV, each other token"),
        ("e2e", "Table IV, to the end"),
    ):
        found = [
            f"{row['published']} - {row['simulated']:.0f}"
            for key, row in ROWS.items()
            if key[0] == "4" and key[3] == value
        ]
        assert cells(begins) == [f"{found[0]}, {found[1]}; {found[2]}, {found[3]} ms"]


def test_the_verdict_of_the_page_is_that_of_the_run():
    verdicts = {each["figure"]: each["verdict"] for each in SHIPPED["figures"]}
    assert verdicts == {"4": checks.AGREES, "6e": checks.AGREES, "12": checks.AGREES, "18": checks.MISSES}
    missed = [
        check["what"]
        for figure in SHIPPED["figures"]
        for check in figure["checks"]
        if check["verdict"] == checks.MISSES
    ]
    assert all("Splitwise-AA / Baseline-H100" in each for each in missed)


@pytest.mark.slow
def test_the_shipped_rate_is_that_of_this_simulator():
    one = cluster(CONVERSATION, "Baseline-H100", requests=2_000)
    found, _ = one.rate(PAPER.figures["18"].settings["limits"], 105)
    assert found == pytest.approx(rate(CONVERSATION, "Baseline-H100"), rel=1e-9)
