"""Time of recurrent layers: states move once per step regardless of contexts, prompts take linear time."""

from dataclasses import replace

import pytest

from kvsim.sim.build import resolve
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.roofline import Roofline
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.models.kv_layers import KvLayers, RecurrentState
from kvsim.sim.options.scenario import Scenario

STATE = RecurrentState(
    kind="mamba2", conv_taps=3, conv_channels=4096, heads=64, head_values=8192, chunk_tokens=256
)
GPU = gpu_named("h100")


def with_layers(attention, recurrent):
    """Qwen3-8B with some of its layers made recurrent."""
    model = model_named("qwen3-8b")
    numbers = tuple(range(model.layers))
    kept = []
    if attention:
        full = KvLayers(
            kind="full_attention", layers=numbers[:attention], kv_heads=8, head_dim=128, value_dim=128
        )
        kept.append(full)
    kept.append(KvLayers(kind="mamba", layers=numbers[attention : attention + recurrent], state=STATE))
    return replace(model, kv_layers=tuple(kept))


def decode(model, seqs, context):
    return Roofline(model, GPU).step_ps(StepShape(decode_seqs=seqs, context_tokens=seqs * context))


def test_a_model_of_recurrent_layers_takes_as_long_at_any_context():
    model = with_layers(0, 36)
    assert decode(model, 8, 100) == decode(model, 8, 100_000)
    assert model.attention_layers == 0


def test_each_sequence_reads_and_writes_its_states_once_a_step():
    model, moved = with_layers(0, 36), 2 * 36 * STATE.bytes_per_sequence()
    told = Roofline(model, GPU).parts_ps(StepShape(decode_seqs=8, context_tokens=800))
    seconds = 8 * moved / (GPU.bandwidth_bytes_per_s * GPU.bandwidth_efficiency)
    assert told["states"] == pytest.approx(seconds * 1e12)
    assert told["decode"] == 0


def test_attention_and_its_pairs_are_those_of_the_attention_layers():
    whole, quarter = model_named("qwen3-8b"), with_layers(9, 27)
    slopes = [
        decode(model, 1, 2000) - decode(model, 1, 1000) for model in (whole, quarter, with_layers(18, 18))
    ]
    rounding_ps = 1000 * 4 // 2 + 1000 // 2  # half a picosecond for each of 1,000 tokens, 4 times and once
    assert abs(slopes[0] - 4 * slopes[1]) <= rounding_ps
    assert abs(slopes[0] - 2 * slopes[2]) <= rounding_ps
    assert whole.prefill_pair_flops == 4 * quarter.prefill_pair_flops


def test_a_prompt_is_scanned_in_a_line():
    model = with_layers(0, 36)
    cost = Roofline(model, GPU)
    shapes = [StepShape(prefill_tokens=n, prefill_pairs=n * n // 2, prefill_seqs=1) for n in (0, 1000, 2000)]
    none, one, two = (cost.parts_ps(shape)["states"] for shape in shapes)
    assert two - one == pytest.approx(one - none)
    assert one > none > 0


@pytest.mark.parametrize("cost", ["roofline", None])
@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "jamba-1.5-mini", "falcon-h1-7b"])
def test_spans_are_their_steps_and_contexts_cost_as_many_layers_as_attend(name, cost):
    scenario = resolve(Scenario(model=name, gpu="h200", cost=cost).deployed()).deployment
    model = cost_named(scenario.cost, scenario)
    steps = [model.step_ps(StepShape(decode_seqs=5, context_tokens=5 * (1000 + step))) for step in range(40)]
    assert list(model.span_ps(5, 5000, 40)) == steps
    prompt = StepShape(prefill_tokens=512, prefill_pairs=512 * 256, prefill_seqs=1)
    both = model.step_ps(prompt._replace(decode_seqs=1, context_tokens=100))
    assert model.step_ps(prompt) < both


def test_measured_profiles_say_that_recurrent_layers_are_not_measured():
    scenario = resolve(Scenario(model="nemotron-h-8b", gpu="h100").deployed()).deployment
    model = cost_named(scenario.cost, scenario)
    shape = StepShape(decode_seqs=5, context_tokens=5000)
    model.carried_out(shape, model.step_ps(shape))
    assert any("recurrent layers" in words for words in model.outside())


def test_mamba_1_scans_on_vector_units():
    first = RecurrentState(kind="mamba1", heads=8192, head_values=16)
    second = RecurrentState(kind="mamba2", heads=8192, head_values=16)
    assert first.scan_flops_per_token() > 10 * second.scan_flops_per_token()
    assert first.scan_bytes_per_token() == 0
