"""Step times: spans equal their steps, more work never takes less time, known sizes of real servers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.sim.cost.constant import Constant
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.roofline import Roofline
from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_named, model_named

LLAMA, H100 = model_named("llama-3.1-8b"), gpu_named("h100")
OPT, A100 = model_named("opt-13b"), gpu_named("a100-40gb")

MISTRAL, GEMMA = model_named("mistral-7b"), model_named("gemma-3-27b")
DEEPSEEK, H200 = model_named("deepseek-v3"), gpu_named("h200")

MODELS = [
    *(Constant(0.03), Roofline(LLAMA, H100), Roofline(OPT, A100), Roofline(LLAMA, gpu_named("l4"), 4)),
    *(Roofline(MISTRAL, H100), Roofline(GEMMA, H100), Roofline(DEEPSEEK, H200, 8)),
]
COUNTS = st.integers(0, 100_000)
WORK = [field for field in StepShape._fields if field != "spread"]
SHAPES = st.builds(
    StepShape,
    *(COUNTS, COUNTS, st.integers(0, 256), st.integers(0, 256), *[COUNTS] * 6),
    *(st.none(), st.integers(0, 1000)),
)


class Quadratic(CostModel):
    source = "a plug-in without a span_ps of its own"

    def step_ps(self, shape: StepShape) -> int:
        return 1 + shape.context_tokens**2


@given(
    st.sampled_from([*MODELS, Quadratic()]), st.integers(0, 500), st.integers(0, 10**6), st.integers(0, 50)
)
def test_a_span_is_its_steps_one_by_one(cost, seqs, contexts, steps):
    each = [
        cost.step_ps(StepShape(decode_seqs=seqs, context_tokens=contexts + i * seqs)) for i in range(steps)
    ]
    assert list(cost.span_ps(seqs, contexts, steps)) == each


@given(st.sampled_from(MODELS), SHAPES, st.sampled_from(WORK), st.integers(1, 1000))
def test_more_work_never_takes_less_time(cost, shape, field, more):
    if field == "decode_seqs":  # the same drafts of more sequences are over shorter contexts each
        shape = shape._replace(draft_tokens=0)
    assert cost.step_ps(shape._replace(**{field: getattr(shape, field) + more})) >= cost.step_ps(shape)


@given(st.sampled_from(MODELS), SHAPES)
def test_a_step_takes_a_positive_whole_number_of_picoseconds(cost, shape):
    duration = cost.step_ps(shape)
    assert type(duration) is int
    assert duration > 0


@pytest.mark.parametrize("model", [MISTRAL, GEMMA])
@given(st.integers(1, 300), st.integers(-40, 40), st.integers(0, 50))
def test_a_span_in_which_the_windows_fill_is_its_steps_one_by_one(model, seqs, short, steps):
    cost, contexts = Roofline(model, H100), model.window * seqs - short * seqs // 2
    each = [
        cost.step_ps(StepShape(decode_seqs=seqs, context_tokens=contexts + i * seqs)) for i in range(steps)
    ]
    assert list(cost.span_ps(seqs, contexts, steps)) == each


def decode_s(cost, seqs, context):
    """A step in which this many sequences of that length decode."""
    return cost.step_ps(StepShape(decode_seqs=seqs, context_tokens=seqs * context)) / 1e12


def test_beyond_the_window_only_full_layers_read_more():
    read_s = 1e6 / (3350e9 * 0.89)
    for model, full in ((MISTRAL, 0), (GEMMA, 10 / 62)):
        cost = Roofline(model, H100)
        per_mega = model.kv_bytes_per_token * read_s
        more = decode_s(cost, 1000, model.window) - decode_s(cost, 1000, model.window - 1000)
        assert more == pytest.approx(per_mega, rel=1e-4)
        more = decode_s(cost, 1000, model.window + 1000) - decode_s(cost, 1000, model.window)
        assert more == pytest.approx(per_mega * full, rel=1e-4)


def test_a_cache_of_8_bits_is_read_in_half_the_time():
    def per_token(model):
        cost = Roofline(model, H100)
        return decode_s(cost, 1000, 2000) - decode_s(cost, 1000, 1000)

    assert per_token(replace(LLAMA, kv_dtype_bytes=1)) == pytest.approx(per_token(LLAMA) / 2, rel=1e-3)


def test_every_gpu_reads_the_whole_latent():
    def per_token(tp):
        cost = Roofline(replace(DEEPSEEK, heads=16, kv_heads=16), H200, tp)
        return decode_s(cost, 1000, 2000) - decode_s(cost, 1000, 1000)

    assert per_token(1) == pytest.approx(per_token(8), rel=1e-6)
    assert per_token(1) == pytest.approx(70_272e6 / (H200.bandwidth_bytes_per_s * 0.89), rel=1e-3)


def test_the_type_of_the_cache_reaches_the_cost():
    def context_ps(**settings):
        cost = cost_named("roofline", Deployment(model=LLAMA, gpu=H100, engine=EngineConfig(), **settings))
        return cost.step_ps(StepShape(decode_seqs=1, context_tokens=10**6))

    assert context_ps(kv_cache_dtype="fp8") < context_ps() == context_ps(kv_cache_dtype="bf16")


@given(st.sampled_from(MODELS[1:]), SHAPES)
def test_the_parts_of_a_step_add_up_to_it(cost, shape):
    shape = shape._replace(copied_tokens=0, swapped_in_blocks=0, swapped_out_blocks=0)
    assert cost.step_ps(shape) == pytest.approx(sum(cost.parts_ps(shape).values()), rel=1e-4)


def test_a_span_of_the_roofline_is_a_range_and_costs_the_same_however_long():
    assert isinstance(MODELS[1].span_ps(4, 1000, 10**9), range)


def test_a_constant_step_takes_the_constant():
    cost = Constant(0.03)
    assert cost.step_ps(StepShape(prefill_tokens=5)) == 30_000_000_000
    assert list(cost.span_ps(2, 100, 3)) == [30_000_000_000] * 3
    assert cost.source == "constant 0.03 s"


def test_a_single_token_costs_reading_the_weights_starting_the_kernels_and_the_latency_of_attention():
    weights_s = (LLAMA.weight_bytes - 2 * LLAMA.head_parameters) / (3350e9 * 0.89)
    kernels_s = 32 * (10 * 3e-6 + 9e-6)
    step_s = Roofline(LLAMA, H100).step_ps(StepShape(decode_seqs=1, context_tokens=1)) / 1e12
    assert step_s == pytest.approx(weights_s + kernels_s, rel=0.001)


def test_a_context_token_costs_reading_its_keys_and_values():
    cost = Roofline(LLAMA, H100)
    one, more = (cost.step_ps(StepShape(decode_seqs=64, context_tokens=c)) for c in (64, 64 + 1_000_000))
    assert (more - one) / 1e12 == pytest.approx(131_072 * 1e6 / (3350e9 * 0.89), rel=1e-4)


def test_a_large_prefill_is_bound_by_the_matrix_products():
    step_s = Roofline(LLAMA, H100).step_ps(StepShape(8192, 8192 * 8193 // 2, 1)) / 1e12
    products_s = 2 * LLAMA.body_parameters * 8192 / (989e12 * 0.8)
    attention_s = 4 * 32 * 32 * 128 * (8192 * 8193 // 2) / (989e12 * 0.55)
    assert products_s + attention_s < step_s < 1.2 * (products_s + attention_s)


def test_copied_tokens_are_read_and_written():
    cost, step = Roofline(OPT, A100), StepShape(decode_seqs=1, context_tokens=10)
    copy_s = (cost.step_ps(step._replace(copied_tokens=1000)) - cost.step_ps(step)) / 1e12
    assert copy_s == pytest.approx(2 * 819_200 * 1000 / (1555e9 * 0.89), rel=1e-6)


def test_no_measured_decode_step_of_the_paper_is_faster_than_the_roofline():
    cost = Roofline(OPT, A100)
    for batch in range(1, 41):  # Figure 1: 26.24 + 0.419 * batch ms
        step_ms = cost.step_ps(StepShape(decode_seqs=batch, context_tokens=300 * batch)) / 1e9
        assert step_ms < 26.24 + 0.419 * batch


def test_more_gpus_are_faster_but_by_less_than_their_number():
    shape = StepShape(decode_seqs=32, context_tokens=32_000)
    one, two, eight = (Roofline(OPT, A100, tp).step_ps(shape) for tp in (1, 2, 8))
    assert one > two > eight > one / 8


def test_gpus_without_a_link_talk_over_pcie():
    shape = StepShape(prefill_tokens=4096, prefill_seqs=1)
    unlinked = replace(H100, link_bytes_per_s=None)
    assert Roofline(LLAMA, unlinked, 2).step_ps(shape) > Roofline(LLAMA, H100, 2).step_ps(shape)
    assert Roofline(LLAMA, unlinked).step_ps(shape) == Roofline(LLAMA, H100).step_ps(shape)


def test_experts_not_chosen_are_read_but_not_computed():
    sparse = Roofline(replace(LLAMA, active_parameters=3_000_000_000), H100)
    dense = Roofline(LLAMA, H100)
    small, large = StepShape(decode_seqs=1, context_tokens=1), StepShape(prefill_tokens=8192, prefill_seqs=1)
    assert sparse.step_ps(small) == dense.step_ps(small)
    assert sparse.step_ps(large) < dense.step_ps(large)


def named(text: str) -> CostModel:
    return cost_named(text, Deployment(model=OPT, gpu=A100, engine=EngineConfig()))


def test_costs_are_named_and_say_where_they_come_from():
    assert named("constant:0.03").step_ps(StepShape()) == 30_000_000_000
    assert named("constant:1e-12").step_ps(StepShape()) == 1
    assert named("roofline").source == "roofline, analytic: opt-13b on a100-40gb (vendor datasheet)"
    assert "on 4 x a100-40gb" in Roofline(OPT, A100, 4).source
    assert named("roofline").extrapolated_share == 0.0


@pytest.mark.parametrize(
    "text", ["constant:0", "constant:-1", "constant:nan", "constant:inf", "constant:1e-13"]
)
def test_a_constant_out_of_range_is_refused(text):
    with pytest.raises(KvsimError, match=r"at least 1e-12 s \(1 ps\) and at most 86400 s, got"):
        named(text)


@pytest.mark.parametrize("text", ["constant", "constant:", "constant:fast"])
def test_a_constant_needs_its_seconds(text):
    with pytest.raises(KvsimError, match=r"needs seconds, as in constant:0\.03, got 'constant"):
        named(text)


def test_an_unknown_cost_suggests_the_nearest():
    with pytest.raises(KvsimError, match="cost 'rooflin' is unknown; did you mean 'roofline'"):
        named("rooflin")
