"""Calibrated step times: the calibration's formulas, spans equal to their steps, time outside counted."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from profiles import settings
from test_modes_agree import draw_case, told

from kernels.calibration import form
from sim.build import build_engine
from sim.catalog import gpu_named, model_named, model_names
from sim.config import EngineConfig, Scenario
from sim.cost import StepShape, cost_named
from sim.cost_calibrated import GRAPH_SEQS, step_shapes
from sim.errors import KvsimError
from sim.spread import Contexts

PROFILE = settings()
PARTS = PROFILE["parts"]
H200 = gpu_named("h200")


def scenario(model="llama-3.1-8b", tp=1, profile=PROFILE, **choices):
    engine = EngineConfig(**choices)
    return Scenario(
        model=model_named(model),
        gpu=H200,
        engine=engine,
        tensor_parallel_size=tp,
        cost="calibrated",
        profile=profile,
    )


def cost(*args, **choices):
    return cost_named("calibrated", scenario(*args, **choices))


def with_norm(p):
    """The example, with another norm in decode attention."""
    found = settings()
    found["parts"]["decode"]["form"]["p"] = p
    return found


COSTS = {
    "llama": cost(),
    "a norm of 2": cost(profile=with_norm(2)),
    "a norm of max": cost(profile=with_norm("max")),
    "many heads": cost("opt-13b"),
    "four GPUs": cost("llama-3.1-70b", 4),
    "windows": cost("mistral-7b"),
    "some windows": cost("gemma-3-27b"),
    "experts and a latent": cost("deepseek-v3", 8),
    "small blocks": cost(block_size=1),
}


def spread_of(contexts, tile, steps):
    """What the server would tell of these contexts, counted one by one."""
    found = Contexts(tile)
    for context in contexts:
        found.add(context)
    return found.spread(0, steps)


def shape_of(contexts, tile):
    return StepShape(
        decode_seqs=len(contexts),
        context_tokens=sum(contexts),
        longest_context=max(contexts),
        rounded_context=sum(-(-context // tile) * tile for context in contexts),
    )


CONTEXTS = st.one_of(
    st.lists(st.integers(1, 400), min_size=1, max_size=40),
    st.lists(st.integers(1, 70_000), min_size=1, max_size=300),
    st.builds(
        lambda n, short, long: [short] * n + [long], *[st.integers(1, 200)] * 2, st.integers(1, 100_000)
    ),
    st.integers(GRAPH_SEQS - 2, GRAPH_SEQS + 2).map(lambda n: [100] * n),
)


@pytest.mark.parametrize("name", COSTS)
@given(CONTEXTS, st.integers(1, 200))
def test_a_span_is_its_steps_one_by_one(name, contexts, steps):
    cost = COSTS[name]
    tile = cost.context_tile or 64
    each = [cost.step_ps(shape_of([c + i for c in contexts], tile)) for i in range(steps)]
    spread = spread_of(contexts, tile, steps)
    shapes = list(step_shapes(len(contexts), sum(contexts), steps, spread))
    assert shapes == [shape_of([c + i for c in contexts], tile) for i in range(steps)]
    assert cost.durations_ps(len(contexts), sum(contexts), steps, spread) == each
    assert all(type(duration) is int and duration > 0 for duration in each)


@pytest.mark.parametrize("name", COSTS)
@given(st.integers(0, 600), st.integers(0, 10**6), st.integers(0, 40))
def test_a_span_of_unknown_contexts_is_its_steps_too(name, seqs, contexts, steps):
    cost = COSTS[name]
    contexts = max(contexts, seqs) if seqs else 0
    each = [
        cost.step_ps(StepShape(decode_seqs=seqs, context_tokens=contexts + i * seqs)) for i in range(steps)
    ]
    assert list(cost.span_ps(seqs, contexts, steps)) == each


@pytest.mark.parametrize("name", COSTS)
@given(CONTEXTS, st.integers(1, 200), st.integers(1, 10**13))
def test_a_span_ends_at_the_first_step_that_reaches_the_limit(name, contexts, steps, limit):
    """Whether or not a later step is shorter."""
    cost = COSTS[name]
    spread = spread_of(contexts, cost.context_tile or 64, steps)
    ends, now = [], 0
    for duration in cost.durations_ps(len(contexts), sum(contexts), steps, spread):
        now += duration
        ends.append(now)
        if now >= limit:
            break
    assert cost.span_ends(len(contexts), sum(contexts), steps, limit, spread) == ends


# -- the formulas of the calibration ------------------------------------------------------------------


def form_decode_s(contexts, kv_heads, group, head_dim, block_size=16):
    part = PARTS["decode"]
    tile = form.by_head_dim(part["constants"]["tile_tokens"], head_dim)
    moved, work = form.decode_features(
        part["constants"],
        sequences=len(contexts),
        total=sum(contexts),
        longest=max(contexts),
        rounded=sum(-(-context // tile) * tile for context in contexts),
        kv_heads=kv_heads,
        head_dim=head_dim,
        element_bytes=2,
    )
    place = {
        "sequence_heads": len(contexts) * kv_heads,
        "context_tokens": sum(contexts) / len(contexts),
        "block_size": block_size,
        "group": group,
        "head_dim": head_dim,
        "element_bytes": 2,
    }
    return form.predict_s(part, moved, work, place)


def form_product_s(name, tokens, inputs, outputs):
    part = PARTS[name]
    moved, work = form.product_features(part["constants"], tokens=tokens, inputs=inputs, outputs=outputs)
    return form.predict_s(part, moved, work, {"tokens": tokens, "inputs": inputs, "outputs": outputs})


def form_bytes_s(name, moved):
    return form.predict_s(PARTS[name], moved, 0.0, {"bytes": moved})


def form_tokens_s(n, m, model, tp):
    """All but attention, written down from the format's own description of a step."""
    heads, kv_heads, inner = model.heads // tp, -(-model.kv_heads // tp), model.intermediate_size // tp
    hidden, dim = model.hidden_size, model.head_dim
    layer = (
        2 * form_bytes_s("elementwise", 8 * n * hidden)
        + form_product_s("product", n, hidden, (heads + 2 * kv_heads) * dim)
        + form_bytes_s("elementwise", 4 * n * (heads + kv_heads) * dim)
        + form_bytes_s("kv_write", 2 * n * kv_heads * dim * 4)
        + form_product_s("product", n, heads * dim, hidden)
        + form_product_s("product", n, hidden, 2 * inner)
        + form_bytes_s("elementwise", 6 * n * inner)
        + form_product_s("product", n, inner, hidden)
    )
    if tp > 1:
        size = n * hidden * 2
        ring = 2 * (tp - 1) / tp * size
        layer += 2 * form.predict_s(PARTS["all_reduce"], ring, 0.0, {"gpus": tp, "bytes": size})
    once = (
        form_bytes_s("elementwise", 8 * n * hidden)
        + form_product_s("lm_head", m, hidden, -(-model.vocab_size // tp))
        + form_bytes_s("sampling", m * model.vocab_size * 2)
    )
    return model.layers * layer + once


@pytest.mark.parametrize(("name", "tp"), [("llama-3.1-8b", 1), ("llama-3.1-70b", 4)])
@given(CONTEXTS)
def test_a_decode_step_is_the_sum_of_the_calibrations_own_forms(name, tp, contexts):
    model, found = model_named(name), COSTS["llama" if tp == 1 else "four GPUs"]
    kv_heads = model.kv_heads // tp
    group = model.heads // model.kv_heads
    n = len(contexts)
    seconds = form_tokens_s(n, n, model, tp)
    seconds += model.layers * form_decode_s(contexts, kv_heads, group, model.head_dim)
    if n <= GRAPH_SEQS:
        seconds += PROFILE["launch"]["replay_s"]
    else:
        kernels = model.layers * (13 if tp > 1 else 11) + 3
        seconds = max(seconds, kernels * PROFILE["launch"]["eager_s"])
    duration = found.step_ps(shape_of(contexts, found.context_tile))
    assert duration / 1e12 == pytest.approx(seconds, rel=1e-9)


@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 5000)), min_size=1, max_size=8))
def test_a_step_of_prompts_is_the_sum_of_the_calibrations_own_forms(chunks):
    model = model_named("llama-3.1-8b")
    tokens = sum(chunk for chunk, _ in chunks)
    pairs = sum(chunk * prefix + chunk * (chunk + 1) // 2 for chunk, prefix in chunks)
    part, n = PARTS["prefill"], len(chunks)
    moved, work = form.prefill_features(
        part["constants"],
        sequences=n,
        tokens=tokens,
        pairs=pairs,
        kv_heads=8,
        group=4,
        head_dim=128,
        element_bytes=2,
    )
    prefix = max(pairs / tokens - (tokens / n + 1) / 2, 0.0)
    place = {"tokens": tokens, "prefix_tokens": prefix, "block_size": 16, "group": 4, "head_dim": 128}
    seconds = form_tokens_s(tokens, n, model, 1) + model.layers * form.predict_s(part, moved, work, place)
    seconds = max(seconds, (model.layers * 10 + 3) * PROFILE["launch"]["eager_s"])
    duration = COSTS["llama"].step_ps(StepShape(tokens, pairs, n))
    assert duration / 1e12 == pytest.approx(seconds, rel=1e-9)


def test_swaps_copy_each_block_of_each_layer_by_itself_and_know_their_direction():
    found, step = COSTS["llama"], StepShape(decode_seqs=1, context_tokens=10)
    block = 16 * 8 * 128 * 2
    for way, fields in (("to_gpu", "swapped_in_"), ("to_host", "swapped_out_")):
        shape = step._replace(**{f"{fields}blocks": 7, f"{fields}tokens": 112})
        moved_s = (found.step_ps(shape) - found.step_ps(step)) / 1e12
        assert moved_s == pytest.approx(7 * 2 * 32 * form_bytes_s(way, block), rel=1e-6)


def test_copies_on_write_cost_what_the_calibration_says():
    found, step = COSTS["llama"], StepShape(decode_seqs=1, context_tokens=10)
    moved_s = (found.step_ps(step._replace(copied_tokens=160)) - found.step_ps(step)) / 1e12
    assert moved_s == pytest.approx(32 * form_bytes_s("block_copy", 4 * 160 * 8 * 128 * 2), rel=1e-6)


def test_one_long_context_among_short_ones_takes_longer_than_even_ones():
    found = COSTS["llama"]
    even, skewed = [4000] * 64, [1000] * 63 + [4000 * 64 - 63_000]
    times = [found.step_ps(shape_of(contexts, found.context_tile)) for contexts in (even, skewed)]
    assert times[1] > 1.2 * times[0]


@pytest.mark.parametrize("name", model_names())
def test_every_built_in_model_has_a_price(name):
    tp = next(tp for tp in (1, 2, 4, 8) if model_named(name).heads % tp == 0)
    found = cost(name, tp)
    assert 0 < found.step_ps(StepShape(decode_seqs=8, context_tokens=8000)) < 10**12


# -- outside what was measured ------------------------------------------------------------------------


def carry_out(found, *contexts):
    for each in contexts:
        shape = shape_of(each, found.context_tile)
        found.carried_out(shape, found.step_ps(shape))


def test_within_the_grid_nothing_is_extrapolated():
    found = cost()
    carry_out(found, [1000] * 8, [100] * 60)
    found.carried_out(StepShape(512, 512 * 513 // 2, 1), 10**9)
    assert (found.extrapolated_share, found.outside()) == (0.0, [])


def test_time_outside_is_named_with_what_was_measured():
    found = cost()
    found.carried_out(StepShape(decode_seqs=8, context_tokens=8 * 1000), 600)
    found.span_carried_out(8, 8 * 65_503, [100, 200, 300, 500])  # two steps within, two beyond 65,504
    found.carried_out(StepShape(9000, 9000 * 9001 // 2, 1), 900)
    assert found.extrapolated_share == (300 + 900) / 2000
    assert found.outside() == [
        "elementwise: bytes 294,912,000 to 774,144,000 (measured: 65,536 to 268,435,456)",
        "prefill: tokens 9,000 (measured: 64 to 8,192)",
        "product: tokens 9,000 (measured: 1 to 8,192)",
        "decode: context tokens 65,505 to 65,506 (measured: 96 to 65,504)",
    ]


def test_what_no_calibration_measures_is_outside_throughout():
    for name, words in (
        ("experts and a latent", ["mixture of experts", "multi-head latent attention"]),
        ("many heads", ["product: inputs 20,480 (measured: 1,024 to 16,384)"]),
    ):
        found = cost_named(
            "calibrated", scenario(*{"many heads": ("opt-13b", 1)}.get(name, ("deepseek-v3", 8)))
        )
        found.carried_out(StepShape(decode_seqs=8, context_tokens=8000), 1000)
        assert found.extrapolated_share == 1.0
        assert set(words) <= set(found.outside())


def test_all_reduces_that_were_not_measured_are_the_rooflines_and_named():
    profile = settings()
    del profile["parts"]["all_reduce"]
    found = cost("llama-3.1-70b", 4, profile=profile)
    carry_out(found, [1000] * 8)
    assert "all-reduce of 4 GPUs" in found.outside()
    assert not any("all reduce" in words for words in found.outside())


# -- fast-forward and step mode -----------------------------------------------------------------------

UNEVEN = settings(
    decode={"context_tokens": [24, 40], "sequence_heads": [8, 60]}, prefill={"tokens": [6, 8192]}
)
"""Ranges that the small cases of the random tests leave now and then."""


@pytest.mark.parametrize("scheduler", ["vllm-v1@0.33.0", "vllm-v0", "nano-vllm", "orca", "static"])
def test_fast_forward_equals_step_mode_in_every_integer_and_in_what_lay_outside(scheduler):
    shares = []
    for seed in range(25):
        case = draw_case(Random(seed), scheduler)
        chosen = replace(case.scenario, model=model_named("llama-3.1-8b"), cost="calibrated", profile=UNEVEN)
        case = replace(case, cost="uneven")
        found = []
        for max_span in (1, 1 << 20):
            engine = build_engine(chosen, squeezed(case.work), max_span=max_span, check=True)
            engine.recorder.timeline_rows = case.timeline_rows
            found.append((told(engine.run()), engine.cost.extrapolated_share, engine.cost.outside()))
        assert found[0] == found[1], f"seed {seed}"
        shares.append(found[0][1])
    assert sum(0 < share < 1 for share in shares) > 12


def squeezed(work):
    """The same requests, arriving at the pace of a calibrated server."""
    return replace(work, arrival_ps=work.arrival_ps // 40)


def test_without_a_profile_the_error_says_what_to_do():
    with pytest.raises(KvsimError, match="measure one with sim calibrate, or use --cost roofline"):
        cost(profile=None)
