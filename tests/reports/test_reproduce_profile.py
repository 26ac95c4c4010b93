"""The profile of the PagedAttention paper's servers: its calibration figures, and the parts of a step."""

import pytest

from kvsim.reports.papers.cells import deployment_of
from kvsim.reports.papers.declared import merged, read_paper
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_named, model_named

pytestmark = pytest.mark.slow

PAPER = read_paper("pagedattention")


def scenario(model="opt-13b", tp=1, cost="a100-40gb-sosp23", block_size=16, allocator="paged"):
    gpu = gpu_named("a100-80gb" if model == "opt-175b" else "a100-40gb")
    engine = EngineConfig(block_size=block_size, allocator=allocator)
    return Deployment(model=model_named(model), gpu=gpu, engine=engine, tensor_parallel_size=tp, cost=cost)


def cost(**options):
    built = scenario(**options)
    return cost_named(built.cost, built)


@pytest.mark.parametrize("name", ["", ":context", ":both"])
@pytest.mark.parametrize("block_size", [1, 8, 16, 256])
def test_a_span_of_the_profile_is_its_steps_one_by_one(name, block_size):
    model = cost(cost=f"a100-40gb-sosp23{name}", block_size=block_size)
    for seqs, contexts in ((1, 1), (30, 15_000), (256, 100_000)):
        shapes = [StepShape(decode_seqs=seqs, context_tokens=contexts + i * seqs) for i in range(40)]
        assert list(model.span_ps(seqs, contexts, 40)) == [model.step_ps(shape) for shape in shapes]


def test_the_profile_has_its_calibration_figures():
    ms = 10**9
    for batch in (4, 20, 40):
        step = cost().step_ps(StepShape(decode_seqs=batch, context_tokens=443 * batch))
        assert step / ms == pytest.approx(26.24 + 0.419 * batch, abs=0.01)
    assert cost().step_ps(StepShape(prefill_tokens=256, prefill_seqs=1)) / ms == pytest.approx(38.1, abs=0.01)
    for size, coming, going in ((1, 81.97, 55.47), (16, 21.61, 18.54), (256, 17.30, 16.11)):
        blocks = 256 // size
        shapes = (
            StepShape(swapped_in_blocks=blocks, swapped_in_tokens=256),
            StepShape(swapped_out_blocks=blocks, swapped_out_tokens=256),
        )
        moved = [cost(block_size=size).step_ps(shape) / ms for shape in shapes]
        assert moved == pytest.approx([coming, going], abs=0.01)


def test_all_tokens_of_a_step_share_its_products():
    """Beyond 178 tokens the products take longer than reading the weights, for any tokens."""
    ms, token = 10**9, (38.10 - 0.419) / 256
    assert 26.24 / token == pytest.approx(178, abs=1)
    for prompts, decodes in ((0, 300), (100, 200), (250, 50)):
        shape = StepShape(prefill_tokens=prompts, prefill_seqs=prompts // 50, decode_seqs=decodes)
        expected = 300 * token + 0.419 * (prompts // 50 + decodes)
        assert cost().step_ps(shape) / ms == pytest.approx(expected, abs=0.01)


def test_swaps_move_beside_the_products_and_only_starting_them_takes_the_host():
    ms = 10**9
    busy, idle = StepShape(decode_seqs=10, context_tokens=10), StepShape()
    swaps = {"swapped_in_blocks": 16, "swapped_in_tokens": 256}
    start = 21.61 - 17.30
    assert cost().step_ps(busy._replace(**swaps)) / ms == pytest.approx(26.24 + 4.19 + start, abs=0.01)
    apart = cost(cost="a100-40gb-sosp23:waiting")
    assert apart.step_ps(busy._replace(**swaps)) / ms == pytest.approx(26.24 + 4.19 + 21.61, abs=0.01)
    assert apart.step_ps(idle._replace(**swaps)) == cost().step_ps(idle._replace(**swaps))


def test_sequences_of_a_request_may_share_the_work_of_the_host():
    ms, shape = 10**9, StepShape(decode_seqs=60, context_tokens=60)
    assert cost(cost="a100-40gb-sosp23:shared6").step_ps(shape) / ms == pytest.approx(26.24 + 4.19, abs=0.01)
    figure = PAPER.figures["14"]
    cell = PAPER.cell(figure, figure.panels["beam 6"], "vLLM")
    told = deployment_of(merged(cell, {"cost": "a100-40gb-sosp23:shared"}))
    assert told.cost == "a100-40gb-sosp23:shared6"
    for wrong in ("shared", "shared0", "sharedx", "copied", "copied-2"):
        with pytest.raises(KvsimError, match="cost variant"):
            cost(cost=f"a100-40gb-sosp23:{wrong}")


def test_a_beam_without_shared_blocks_copies_what_a_survivor_takes_over():
    """5 of 6 candidates are copied, with half a block more than their contexts: read once, written once."""
    shape = StepShape(decode_seqs=60, context_tokens=60 * 50)
    slots, gpu = 5 / 6 * 60 * (50 + 8), gpu_named("a100-40gb")
    bytes_per_s = gpu.bandwidth_bytes_per_s * gpu.bandwidth_efficiency
    more_ps = cost(cost="a100-40gb-sosp23:copied6").step_ps(shape) - cost().step_ps(shape)
    assert more_ps / 10**12 == pytest.approx(2 * slots * 819_200 / bytes_per_s, rel=1e-5)
    figure = PAPER.figures["14"]
    choice = next(choice for choice in PAPER.choices if choice.name == "copies of beams")
    orca, vllm = (PAPER.cell(figure, figure.panels["beam 6"], who) for who in ("Orca (Oracle)", "vLLM"))
    assert deployment_of(choice.changed(orca)).cost == "a100-40gb-sosp23:copied6"
    assert choice.changed(vllm) is None
    assert choice.changed(PAPER.cell(figure, figure.panels["parallel 6"], "Orca (Oracle)")) is None


def test_the_profile_knows_the_papers_models_as_the_paper_split_them():
    assert cost(model="opt-66b", tp=4).step_ps(StepShape(decode_seqs=1)) > 50 * 10**9
    with pytest.raises(KvsimError, match="tensor_parallel_size must be 8 for opt-175b"):
        cost(model="opt-175b", tp=4)
    with pytest.raises(KvsimError, match="model must be one of opt-13b"):
        cost(model="llama-2-7b")
    with pytest.raises(KvsimError, match="cost variant"):
        cost(cost="a100-40gb-sosp23:fast")
