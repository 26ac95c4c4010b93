"""DistServe's figures: step times as in its simulator, closed forms of what binds, verdicts."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvsim import cli, workloads
from kvsim.reports.papers import checks, declared, running
from kvsim.reports.papers.disaggregated import attainment_of, drawn
from kvsim.reports.papers.series import all_series
from kvsim.sim.build import build_engine
from kvsim.sim.cost.engines import EngineProfile
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import model_named

PAPER = declared.read_paper("distserve")
MS = 1e9


def series(panel, system, choice=""):
    """One series of the paper."""
    found = (each for figure in PAPER.figures.values() for each in all_series(PAPER, figure, quick=False))
    return next(each for each in found if (each.panel, each.system, each.choice) == (panel, system, choice))


def system(panel, name, seeds=2):
    """The runs of a system in a panel."""
    one = series(panel, name)
    return attainment_of(one.cell["arguments"], one.settings["limits"], seeds)


def cost(panel, name, engine, role=0):
    """The step times of one of its servers."""
    fleet = system(panel, name).fleet
    server = fleet.pools[role].server if fleet.pools else fleet
    return EngineProfile(engine, server)


# -- step times: numbers of time_estimator.py and add_ray_overhead, put together by hand ---------------------


def test_a_step_of_prompts():
    shape = StepShape(prefill_tokens=300, prefill_pairs=100 * 101 // 2 + 200 * 201 // 2, prefill_seqs=2)
    by_hand_ms = 22.0522 + 0.140509 * 300 + 8.07658e-6 * (100**2 + 200**2) + 2 + 0.0001 * 300
    assert cost("OPT-13B, ShareGPT", "vLLM", "vllm").step_ps(shape) / MS == pytest.approx(
        by_hand_ms, rel=1e-4
    )


@pytest.mark.parametrize(
    ("decoding", "by_hand_ms"),
    [
        (94, 23.475 + 0.000592934 * 9_400 + 0.0607269 * 94 + 2 + 0.0001 * 9_400),
        (95, 20.2064 + 0.000490773 * 9_500 + 0.120003 * 95 + 2 + 0.0001 * 9_500),
    ],
)
def test_a_step_of_decodes_has_other_constants_from_95_sequences_on(decoding, by_hand_ms):
    model = cost("OPT-13B, ShareGPT", "vLLM", "vllm")
    shape = StepShape(decode_seqs=decoding, context_tokens=100 * decoding)
    assert model.step_ps(shape) / MS == pytest.approx(by_hand_ms, rel=1e-4)
    span = [
        model.step_ps(shape._replace(context_tokens=shape.context_tokens + step * decoding))
        for step in range(5)
    ]
    assert list(model.span_ps(decoding, shape.context_tokens, 5)) == span


def test_a_prompt_of_which_one_token_is_left_is_a_decode():
    model = cost("OPT-13B, ShareGPT", "DistServe", "distserve", role=1)
    handed_over = StepShape(
        prefill_tokens=1, prefill_pairs=700, prefill_seqs=1, decode_seqs=3, context_tokens=900
    )
    assert model.step_ps(handed_over) == model.step_ps(StepShape(decode_seqs=4, context_tokens=1_600))


def test_opt_175b_is_scaled_from_opt_66b_and_meets_the_step_of_another_paper():
    """83.0 ms against the 85.0 ms of the PagedAttention paper's Figure 12, on as many GPUs."""
    large, small = model_named("opt-175b"), model_named("opt-66b")
    alone = StepShape(decode_seqs=1, context_tokens=1)
    ms = cost("OPT-175B, ShareGPT", "vLLM", "vllm").step_ps(alone) / MS
    assert ms - 2 == pytest.approx((31.176 + 0.0679771) * large.parameters / small.parameters, rel=1e-4)
    assert ms == pytest.approx(85.0, rel=0.02)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": model_named("llama-2-7b")}, "model must be one of opt-13b, opt-66b, opt-175b"),
        ({"tensor_parallel_size": 8}, "tensor_parallel_size must be one of 1, 2, 4"),
    ],
)
def test_what_the_profile_does_not_know_is_refused(change, words):
    fleet = replace(system("OPT-13B, ShareGPT", "vLLM").fleet, kv_tokens=None, **change)
    with pytest.raises(KvsimError, match=words):
        EngineProfile("vllm", fleet)
    with pytest.raises(KvsimError, match=r"cost must be a100-80gb-osdi24:distserve or .*vllm, got .*:tgi"):
        EngineProfile("tgi", fleet)


def test_longer_prompts_than_were_fitted_are_refused():
    """Beyond 27,000 tokens a prompt's quadratic term, whose constant is negative, would shorten a step."""
    fleet = system("OPT-66B, ShareGPT", "vLLM").fleet
    longer = replace(fleet, engine=replace(fleet.engine, max_model_len=130_000))
    with pytest.raises(KvsimError, match=r"max_model_len must be at most 2,048 with cost .*, got 130,000"):
        EngineProfile("vllm", longer)


# -- what is run ---------------------------------------------------------------------------------------------


def test_gpus_requests_and_lengths_are_those_of_the_paper():
    """1 and 3, 4 and 8, 8 and 21 GPUs (plot.ipynb); HumanEval's 164 problems; none above 2,048 tokens."""
    gpus = {
        panel: tuple(system(panel, name).fleet.all_gpus for name in ("vLLM", "DistServe"))
        for panel in ("OPT-13B, ShareGPT", "OPT-66B, HumanEval", "OPT-175B, ShareGPT")
    }
    assert list(gpus.values()) == [(1, 3), (4, 8), (8, 21)]
    for figure in PAPER.figures.values():
        for panel in figure.panels:
            assert system(panel, "vLLM").lengths.sum(axis=0).max() < 2_048
    assert system("OPT-66B, HumanEval", "vLLM").lengths.shape == (2, 164)


def test_requests_of_a_run_are_drawn_without_replacement_first():
    lengths = np.array([[1, 2, 3], [10, 20, 30]])
    work = drawn(lengths, 6, rate=1.0, seed=0)
    assert sorted(work.prompt_tokens.tolist()) == [1, 1, 2, 2, 3, 3]
    assert (work.output_tokens == 10 * work.prompt_tokens).all()


def test_step_by_step_gives_the_same():
    fleet = system("OPT-66B, ShareGPT", "DistServe").fleet
    work = drawn(system("OPT-66B, ShareGPT", "DistServe").lengths, 40, rate=8.0, seed=1)
    spans, steps = (build_engine(fleet, work, max_span=most).run() for most in (1 << 20, 1))
    for name, column in spans.requests.items():
        assert (column == steps.requests[name]).all(), name
    assert (spans.stages["prompt_computed_ps"] == steps.stages["prompt_computed_ps"]).all()


def test_prompts_too_long_for_the_limit_are_late_on_an_idle_server():
    """With hardly any load, requests are within both limits if their prompt alone takes less."""
    idle = system("OPT-66B, HumanEval", "vLLM", seeds=1)
    first_ms = 42.9655 + 2 + (0.212866 + 0.0001) * idle.lengths[0] + 4.60102e-5 * idle.lengths[0] ** 2
    assert idle.attained(rate=1e-4) == pytest.approx((first_ms <= 125).mean(), abs=0.03)


@pytest.mark.slow
def test_limits_twice_as_wide_are_half_the_scale_and_carry_more():
    narrow = system("OPT-66B, ShareGPT", "DistServe")
    wide = replace(narrow, limits_s=(5.0, 0.3))
    assert wide.scale(0.75) == pytest.approx(narrow.scale(0.75) / 2)
    assert wide.goodput(0.9) > narrow.goodput(0.9)


@pytest.mark.slow
def test_a_quick_run_agrees_where_the_curve_is_steep(tmp_path):
    """Figure 8: both systems' rates with OPT-66B; Figure 9: the 12.6 times narrower limits of LongBench."""
    figure = PAPER.figures["8"]
    chosen = replace(figure, panels={"OPT-66B, ShareGPT": figure.panels["OPT-66B, ShareGPT"]})
    findings = running.carry_out_all(PAPER, [chosen], workloads.build, quick=True, jobs=1, store=tmp_path)
    again = running.carry_out_all(PAPER, [chosen], workloads.build, quick=True, jobs=1, store=tmp_path)
    assert findings.runs == again.runs > 0
    assert findings.cpu_s == again.cpu_s > 10 * again.spent_cpu_s  # it was kept
    assert all(len(found.points) > 5 for found in again.found.values())
    judged = checks.judged(PAPER, chosen, again)
    assert judged.checks[0].verdict == checks.AGREES
    rates = {row.system: row for row in judged.rows if row.value == "goodput"}
    assert rates["DistServe"].simulated == pytest.approx(rates["DistServe"].published, rel=0.15)
    assert rates["DistServe"].simulated > 1.75 * rates["vLLM"].simulated


# -- the page and the run that it shows ----------------------------------------------------------------------

DOCS = Path(cli.__file__).resolve().parent / "docs"
PAGE = (DOCS / "reproduce.md").read_text(encoding="utf-8").split("## DistServe")[1].split("\n## ")[0]
SHIPPED = json.loads((DOCS / "reproduce" / "distserve.json").read_text(encoding="utf-8"))
ROWS = {
    (row["panel"], row["system"], row["value"]): row
    for figure in SHIPPED["figures"]
    for row in figure["rows"]
}


TASKS = {"ShareGPT": "chat", "HumanEval": "code", "LongBench": "summaries"}


def cells(begins):
    """The cells of the table row with this beginning."""
    (found,) = (each for each in PAGE.splitlines() if each.startswith(f"| {begins} |"))
    return [cell.strip() for cell in found.split("|")[2:-1]]


def of(panel, system, value="goodput"):
    """Published and simulated values."""
    row = ROWS[panel, system, value]
    return row["published"], row["simulated"]


def told(pair):
    """As the page shows it."""
    return " - ".join(f"{each:#.3g}" for each in pair)


@pytest.mark.parametrize("panel", sorted({panel for panel, _, _ in ROWS}))
def test_the_table_has_the_numbers_of_the_run(panel):
    vllm, own = of(panel, "vLLM"), of(panel, "DistServe")
    scales = of(panel, "vLLM", "scale"), of(panel, "DistServe", "scale")
    ratio = [one / other for one, other in zip(own, vllm, strict=True)]
    limits = [one / other for one, other in zip(*scales, strict=True)]
    model, data = panel.split(", ")
    assert cells(f"{TASKS[data]}, {model}") == [told(vllm), told(own), told(ratio), told(limits)]


def test_the_same_kernels_are_those_of_the_run():
    other = {
        each["panel"]: each["other"]
        for figure in SHIPPED["figures"]
        for each in figure["open_choices"]
        if each["choice"] == "same kernels" and each["value"].startswith("requests/s")
    }
    assert cells("vLLM, the same kernels") == [f"{each:#.3g}" for each in other.values()]
    assert cells("DistServe") == [f"{of(panel, 'DistServe')[1]:#.3g}" for panel in other]


def test_the_verdict_of_the_page_is_that_of_the_run():
    deciding = [check for figure in SHIPPED["figures"] for check in figure["checks"] if check["decides"]]
    assert [check["verdict"] for check in deciding] == [checks.AGREES, checks.MISSES, checks.AGREES] * 2
    near = {value: 0 for value in ("goodput", "scale")}
    for (_, _, value), row in ROWS.items():
        if value in near:
            near[value] += row["verdict"] == checks.AGREES
    assert near == {"goodput": 6, "scale": 10}


@pytest.mark.slow
def test_the_shipped_numbers_are_those_of_this_simulator():
    one = series("OPT-66B, LongBench", "DistServe")
    mine = attainment_of(one.cell["arguments"], one.settings["limits"], one.settings["seeds"])
    assert mine.scale(0.375) == pytest.approx(of("OPT-66B, LongBench", "DistServe", "scale")[1], rel=1e-9)
