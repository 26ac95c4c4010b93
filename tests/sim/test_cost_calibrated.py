"""Calibrated step times: the calibration's formulas, spans equal to their steps, time outside counted."""

from dataclasses import replace
from itertools import pairwise, product
from random import Random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from support.cases import draw_case, told
from support.profiles import of_an_earlier_kernel, settings
from support.settings import deployed

from kvsim.kernels.calibration import form
from kvsim.kernels.calibration.points import Point, features, routing
from kvsim.sim.build import build_engine, resolve
from kvsim.sim.cost.calibrated.layer import layer_of
from kvsim.sim.cost.calibrated.model import FIRST_STRETCH, STRETCH
from kvsim.sim.cost.calibrated.parts import ExpertsPart, Part
from kvsim.sim.cost.calibrated.starts import GRAPH_SEQS
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.scaled import Scaled
from kvsim.sim.cost.step_cost import Spread, StepShape
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_named, model_named, model_names
from kvsim.sim.models.spec import can_split
from kvsim.sim.serving.spread import Contexts

pytestmark = pytest.mark.slow

PROFILE = settings()
PARTS = PROFILE["parts"]
INSIDE = 2**-20
"""Tokens from the ends of a stretch of steps to where its pieces are counted: its steps have the same."""
CUT_FROM = 2 * PARTS["decode"]["constants"]["least_piece_tokens"]
"""Length from which contexts are cut, however few they are."""
EARLIER = of_an_earlier_kernel()
H200 = gpu_named("h200")


def scenario(model="llama-3.1-8b", tp=1, profile=PROFILE, **choices):
    engine = EngineConfig(**choices)
    return deployed(
        model=model_named(model),
        gpu=H200,
        engine=engine,
        tensor_parallel_size=tp,
        cost="calibrated",
        profile=profile,
        host_time="none",
    )


def cost(*args, **choices):
    return cost_named("calibrated", scenario(*args, **choices))


def without_latents():
    """The example without latents, like quick profiles and those of earlier versions."""
    found = settings()
    del found["parts"]["latent"]
    return found


def without_experts():
    """Nor experts, like profiles from before they were measured."""
    found = without_latents()
    del found["parts"]["experts"], found["parts"]["experts_fp8"]
    return found


def with_norm(p):
    """The example, with another norm in decode attention."""
    found = settings()
    found["parts"]["decode"]["form"]["p"] = p
    return found


COSTS = {
    "llama": cost(),
    "a norm of 2": cost(profile=with_norm(2)),
    "a norm of max": cost(profile=with_norm("max")),
    "each context cut alone": cost(profile=EARLIER),
    "many heads": cost("opt-13b"),
    "four GPUs": cost("llama-3.1-70b", 4),
    "windows": cost("mistral-7b"),
    "some windows": cost("gemma-3-27b"),
    "experts": cost("qwen3-30b-a3b"),
    "experts and a latent": cost("deepseek-v3", 8),
    "experts that were not measured": cost("mixtral-8x7b", 2, without_experts()),
    "a latent that was not measured": cost("deepseek-v3", 8, without_latents()),
    "a latent of eight heads": cost("kimi-k2", 8),
    "small blocks": cost(block_size=1),
    "no graphs": cost(enforce_eager=True),
}


def spread_of(contexts, tile):
    """What the server would report of these contexts, counted one by one."""
    found = Contexts(tile)
    for context in contexts:
        found.add(context)
    return found.at(0)


def shape_of(contexts, tile, steps=0):
    """The shape of a step `steps` steps after the server's contexts were rounded up."""
    return StepShape(
        decode_seqs=len(contexts),
        context_tokens=sum(contexts),
        spread=Spread(
            longest=max(contexts),
            rounded=sum(-((context - steps) // -tile) * tile + steps for context in contexts),
        ),
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
    shapes = [shape_of([c + i for c in contexts], tile, i) for i in range(steps)]
    each = [cost.step_ps(shape) for shape in shapes]
    spread = spread_of(contexts, tile)
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
@example([1] * 96 + [583], 1, 1)  # 7 steps ago, where their mean was a multiple of 64, they were 0 in sum
def test_a_span_ends_at_the_first_step_that_reaches_the_limit(name, contexts, steps, limit):
    """Whether or not a later step is shorter."""
    cost = COSTS[name]
    spread = spread_of(contexts, cost.context_tile or 64)
    ends, now = [], 0
    for duration in cost.durations_ps(len(contexts), sum(contexts), steps, spread):
        now += duration
        ends.append(now)
        if now >= limit:
            break
    assert cost.span_ends(len(contexts), sum(contexts), steps, limit, spread) == ends


@given(st.lists(st.tuples(st.integers(-300, 300), st.integers(0, 200), st.booleans()), min_size=1), st.data())
def test_contexts_are_counted_where_the_clock_is_a_multiple_of_the_tile(turns, data):
    """Even as requests come and go: the longest exactly, the sum as rounded there, plus a token per step."""
    found, living, now = Contexts(64), [], 0
    for base, steps, leaves in turns:
        if leaves and living:
            found.remove(living.pop(data.draw(st.integers(0, len(living) - 1))))
        living.append(max(base, 1 - now))  # nobody comes without a token
        found.add(living[-1])
        now += steps
        counted = now // 64 * 64
        rounded = sum(-(each + counted) // 64 * -64 for each in living)
        assert found.at(now) == (max(living) + now, rounded + (now - counted) * len(living))


# -- the formulas of the calibration ------------------------------------------------------------------


def form_decode_s(shape, kv_heads, group, head_dim, block_size=16, profile=PROFILE, before=0):
    """`before`: the ratio is that of contexts so many tokens shorter."""
    part, n = profile["parts"]["decode"], shape.decode_seqs
    moved, work, merged = form.decode_features(
        part["constants"],
        sequences=n,
        total=shape.context_tokens,
        longest=shape.spread.longest,
        rounded=shape.spread.rounded,
        kv_heads=kv_heads,
        head_dim=head_dim,
        element_bytes=2,
    )
    place = {
        "sequence_heads": n * kv_heads,
        "context_tokens": shape.context_tokens / n - before,
        "block_size": block_size,
        "group": group,
        "head_dim": head_dim,
        "element_bytes": 2,
        "merged": merged,
    }
    return form.predict_s(part, moved, work, place)


def later(shape, steps, longer=0, tile=64):
    """This many steps later; all are longer by that if they are alike, else the longest is."""
    seqs, spread = shape.decode_seqs, shape.spread.later(steps, shape.decode_seqs)
    total, longest = shape.context_tokens + steps * seqs, spread.longest + longer
    alike = spread.longest * seqs == total and longer
    rounded = -(-longest // tile) * tile * seqs if alike else spread.rounded
    spread = Spread(longest=longest, rounded=rounded)
    return shape._replace(context_tokens=total + longer * seqs, spread=spread)


def form_product_s(name, tokens, inputs, outputs):
    part = PARTS[name]
    moved, work = form.product_features(part["constants"], tokens=tokens, inputs=inputs, outputs=outputs)
    return form.predict_s(part, moved, work, {"tokens": tokens, "inputs": inputs, "outputs": outputs})


def form_bytes_s(name, moved):
    return form.predict_s(PARTS[name], moved, 0.0, {"bytes": moved})


def form_tokens_s(n, m, model, tp):
    """All but attention, written from the format's own description of a step."""
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
        moved, start = form.all_reduce_features(PARTS["all_reduce"]["constants"], gpus=tp, size=size)
        layer += 2 * form.predict_s(PARTS["all_reduce"], moved, start, {"gpus": tp, "bytes": size})
    once = (
        form_bytes_s("elementwise", 8 * n * hidden)
        + form_product_s("lm_head", m, hidden, -(-model.vocab_size // tp))
        + form_bytes_s("sampling", m * model.vocab_size * 2)
    )
    return model.layers * layer + once


def form_latent_s(shape, heads, block_size=16, element_bytes=2):
    part, n, (longest, rounded) = PARTS["latent"], shape.decode_seqs, shape.spread
    moved, work, merged = form.latent_features(
        part["constants"], spread=(n, shape.context_tokens, longest, rounded), heads=heads, width=576,
        element_bytes=element_bytes,
    )  # fmt: skip
    place = {
        "heads": max(heads, 16), "sequences": n, "context_tokens": shape.context_tokens / n, "width": 576,
        "block_size": block_size, "element_bytes": element_bytes, "merged": merged,
    }  # fmt: skip
    return form.predict_s(part, moved, work, place)


@pytest.mark.parametrize(("name", "tp", "heads"), [
    ("deepseek-v3", 8, 16), ("deepseek-v3", 1, 128), ("kimi-k2", 1, 64), ("kimi-k2", 8, 8),
])  # fmt: skip
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=60))
def test_attention_over_latents_is_what_the_calibration_measured(name, tp, heads, contexts):
    """61 layers; at the mean of a stretch exactly, as everywhere else (test of keys and values)."""
    mean = max(sum(contexts) // len(contexts) // STRETCH, 1) * STRETCH
    contexts[0] += mean * len(contexts) - sum(contexts)
    if contexts[0] < 1:
        contexts = [mean] * len(contexts)
    shape = shape_of(contexts, 64)
    attention = cost(name, tp)._parts.attention
    before = later(shape, 0, INSIDE, 64)
    found, _ = attention.decode_ends_ps(len(contexts), sum(contexts), shape.spread, STRETCH)
    assert found / 1e12 == pytest.approx(61 * form_latent_s(before, heads), rel=1e-9)


def test_a_latent_is_written_and_copied_once_for_all_heads():
    """As many numbers as a key and a value of 288: 576, not those of 128 heads."""
    copied = StepShape(decode_seqs=1, context_tokens=100, copied_tokens=1_000_000)
    plain = StepShape(decode_seqs=1, context_tokens=100)
    found, one_head = cost("deepseek-v3", 8), cost("llama-3.1-8b")
    numbers, layers = 2 * 8 * 128, 32  # of Llama, which keeps a key and a value of each of 8 heads
    each = (one_head.step_ps(copied) - one_head.step_ps(plain)) / (numbers * layers)
    assert (found.step_ps(copied) - found.step_ps(plain)) / (576 * 61) == pytest.approx(each, rel=0.01)


def test_between_multiples_of_64_tokens_the_straight_line_is_close_for_latents_too():
    """A step that just fills its tiles counts with the ones it begins: one a sequence, of 132 programs."""
    found, errors = cost("deepseek-v3", 8), []
    tile_s = 1 / PARTS["latent"]["form"]["work_per_s"]
    for seqs, context in product((1, 4, 16, 33, 64, 100, 200), range(1, 4000, 37)):
        shape = shape_of([context] * seqs, 64)
        since, start, more = found._line(seqs, context * seqs, shape.spread)
        form_s = form_latent_s(shape, 16)
        errors.append(((start + more * since) / 1e12 / 61 - form_s) / form_s)
        assert abs(errors[-1]) * form_s < 0.01 * form_s + max(1, seqs / 132) * tile_s, (seqs, context)
    assert sum(map(abs, errors)) / len(errors) < 0.006


@pytest.mark.parametrize(
    ("case", "name", "tp", "profile"),
    [
        ("llama", "llama-3.1-8b", 1, PROFILE),
        ("four GPUs", "llama-3.1-70b", 4, PROFILE),
        ("each context cut alone", "llama-3.1-8b", 1, EARLIER),
    ],
)
@example([449])
@given(CONTEXTS)
def test_a_decode_step_is_the_sum_of_the_calibrations_own_forms(case, name, tp, profile, contexts):
    model, found = model_named(name), COSTS[case]
    kv_heads = model.kv_heads // tp
    group = model.heads // model.kv_heads
    n = len(contexts)
    seconds = form_tokens_s(n, n, model, tp)
    shape = shape_of(contexts, COSTS["llama"].context_tile)
    stretch = STRETCH if sum(contexts) >= STRETCH * n else FIRST_STRETCH
    since = sum(contexts) // n % stretch  # steps from where the mean context was a multiple of it
    inside = 0 if profile is EARLIER else INSIDE
    ends = later(shape, -since, inside), later(shape, stretch - since, -inside)
    longest = shape.spread.longest - since
    cut = profile is PROFILE and longest < CUT_FROM <= longest + stretch
    # The rest of a stretch in which cutting begins takes as long as if it did not.
    assume(not cut or longest + stretch == CUT_FROM)
    start, end = (
        form_decode_s(each, kv_heads, group, model.head_dim, profile=profile, before=before)
        for each, before in zip(ends, (0, int(cut)), strict=True)  # the ratio of uncut contexts
    )
    seconds += model.layers * (start + (end - start) * since / stretch)
    seconds += profile["launch"].get("cut_s", 0.0)
    if n <= GRAPH_SEQS:
        seconds += PROFILE["launch"]["replay_s"]
    else:
        kernels = model.layers * (13 if tp > 1 else 11) + 3
        seconds = max(seconds, kernels * PROFILE["launch"]["eager_s"])
    assert found.step_ps(shape) / 1e12 == pytest.approx(seconds, abs=100e-12)


def test_between_multiples_of_64_tokens_the_straight_line_is_close_to_the_forms():
    """Of attention alone, also where tiles and shares begin.

    A step at a multiple, where all contexts just fill their tiles, counts as those after it: with the tile
    that they begin. It is too long by these tiles: one for each sequence of a program, of 33 per KV head.
    """
    found, errors = COSTS["llama"], []
    for seqs, context in product((1, 2, 4, 8, 16, 33, 64, 100, 200, 256, 400), range(1, 4000, 37)):
        shape = shape_of([context] * seqs, 64)
        since, start, more = found._line(seqs, context * seqs, shape.spread)
        line_s = (start + more * since) / 1e12 / 32
        form_s = form_decode_s(shape, 8, 4, 128)
        errors.append(abs(line_s / form_s - 1))
        tile_s = 1 / PARTS["decode"]["form"]["work_per_s"]
        assert abs(line_s - form_s) < (0.03 * form_s if context % 64 else max(1, seqs / 33) * tile_s)
    assert sum(errors) / len(errors) < 0.0005


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


def without(name):
    """The profile without a time of its launches."""
    return PROFILE | {"launch": {key: each for key, each in PROFILE["launch"].items() if key != name}}


@pytest.mark.parametrize(("model", "times"), [("llama-3.1-8b", 1), ("gpt-oss-20b", 2), ("deepseek-v3", 1)])
def test_contexts_are_shared_out_once_a_step_in_which_sequences_decode(model, times):
    """For all layers, and once for windowed ones; not before prompts alone; older profiles lack it."""
    tp = 8 if model == "deepseek-v3" else 1
    found, before = (cost(model, tp, profile=profile) for profile in (PROFILE, without("cut_s")))
    cut_ps = times * PROFILE["launch"]["cut_s"] * 1e12
    decoding = StepShape(decode_seqs=300, context_tokens=300_000)
    mixed = StepShape(4096, 4096**2 // 2, 1, decode_seqs=300, context_tokens=300_000)
    prompts = StepShape(4096, 4096**2 // 2, 1)
    for shape, more_ps in ((decoding, cut_ps), (mixed, cut_ps), (prompts, 0)):
        assert found.step_ps(shape) - before.step_ps(shape) == pytest.approx(more_ps, abs=2)


def test_without_graphs_a_small_step_takes_what_launching_its_kernels_takes():
    """On 8 GPUs 32 layers of 13 kernels, and three after the last; a large step takes the GPU's time."""
    graphs, eager = (cost("llama-3.1-8b", 8, enforce_eager=off) for off in (False, True))
    small = StepShape(decode_seqs=1, context_tokens=100)
    large = StepShape(decode_seqs=256, context_tokens=10**6)
    launch_s, replay_s = (PROFILE["launch"][name] for name in ("eager_s", "replay_s"))
    assert eager.step_ps(small) == int(419 * launch_s * 1e12) > graphs.step_ps(small)
    assert eager.step_ps(large) == pytest.approx(graphs.step_ps(large) - replay_s * 1e12, abs=2)
    with pytest.raises(KvsimError, match="enforce_eager must be left out for cost roofline"):
        resolve(replace(scenario(enforce_eager=True), cost="roofline"))


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


@pytest.mark.parametrize(("case", "least", "most"), [("llama", 0.99, 1.02), ("each context cut alone", 4, 5)])
def test_one_long_context_among_short_ones_costs_what_its_pieces_do(case, least, most):
    """Even shares fill the GPU; if each context is cut alone, 8 programs read half of everything."""
    found = COSTS[case]
    even, skewed = [4000] * 64, [1000] * 63 + [4000 * 64 - 63_000]
    times = [found.step_ps(shape_of(contexts, found.context_tile)) for contexts in (even, skewed)]
    assert least < times[1] / times[0] < most


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


def test_time_outside_is_named_with_what_was_measured_and_only_that_of_the_parts():
    """8 contexts beyond the longest: attention in two of four steps. 20,000 tokens: not the norms."""
    found = cost()
    beside = found.step_ps(StepShape(decode_seqs=8, context_tokens=8)) // 2  # less than all but attention
    found._decoding[8] = found._only_decoding(8)._replace(beside_ps=beside)
    found.carried_out(StepShape(decode_seqs=8, context_tokens=8 * 1000), 10 * beside)
    assert found.extrapolated_share == 0.0
    found.span_carried_out(8, 8 * 131_039, [2 * beside * i for i in (1, 2, 3, 4)])
    assert found.extrapolated_share == (2 * beside) / (18 * beside)
    assert found.outside() == ["decode: context tokens 131,041 to 131,042 (measured: 1 to 131,040)"]
    prompt, found = StepShape(20_000, 20_000 * 20_001 // 2, 1), cost()
    duration = found.step_ps(prompt)
    found.carried_out(prompt, duration)
    assert found.outside() == [
        "product: tokens 20,000 (measured: 1 to 16,384)",
        "prefill: tokens 20,000 (measured: 1 to 16,384)",
    ]
    moved = [("elementwise", 4 * 40 * 128), ("elementwise", 6 * 14_336), ("kv_write", 8 * 8 * 128)]
    others_s = 65 * form_bytes_s("elementwise", 8 * 20_000 * 4096)
    others_s += 32 * sum(form_bytes_s(name, 20_000 * size) for name, size in moved)
    last_s = form_product_s("lm_head", 1, 4096, 128_256) + form_bytes_s("sampling", 2 * 128_256)
    inside_s = (1 - found.extrapolated_share) * duration / 1e12
    assert inside_s == pytest.approx(others_s + last_s, rel=1e-6)


def test_what_no_calibration_measures_counts_with_its_own_time():
    found = cost_named("calibrated", scenario("deepseek-v3", 8, without_experts()))
    shape = StepShape(decode_seqs=8, context_tokens=8000)
    duration = found.step_ps(shape)
    found.carried_out(shape, duration)
    body, attention = found._parts.body, found._parts.attention
    unmeasured = body._unmeasured_products(8).ps * 61 + attention.decode_ends_ps(8, 8000, None, 0)[0]
    assert found.extrapolated_share == pytest.approx(unmeasured / duration, rel=1e-3)
    assert found.outside()[:2] == ["mixture of experts", "multi-head latent attention"]


def test_latents_that_were_measured_are_outside_only_where_they_lie_outside():
    """Prompts of such models belong to no part: the sizes of their queries and keys differ from all parts."""
    found = cost("deepseek-v3", 8)
    steps = StepShape(decode_seqs=8, context_tokens=8000), StepShape(2000, 2001000, 1)
    said = []
    for shape in steps:
        found.carried_out(shape, found.step_ps(shape))
        said.append(found.outside())
    assert {each.partition(":")[0] for each in said[0]} == {"product fp8", "product"}  # narrow ones
    assert set(said[1]) == {*said[0], "prompts of multi-head latent attention"}
    many = StepShape(decode_seqs=300, context_tokens=300 * 1000)
    found.carried_out(many, found.step_ps(many))
    assert "latent: sequences 300 (measured: 1 to 256)" in found.outside()


@pytest.mark.parametrize(
    ("model", "tp", "part", "spread", "skew"),
    [
        ("qwen3-30b-a3b", 1, "experts", False, 1.2), ("qwen3-30b-a3b", 1, "experts", False, 0.0),
        ("mixtral-8x7b", 2, "experts", False, 1.2), ("deepseek-v3", 8, "experts_fp8", False, 1.2),
        ("deepseek-v3", 8, "experts_fp8", True, 1.2),
    ],
)  # fmt: skip
def test_experts_take_what_the_calibration_predicts(model, tp, part, spread, skew):
    """As computed by its formulas, with its own rule for the rows of a tile; `spread`: over the GPUs."""
    experts, content = layer_of(model_named(model), tp, spread).experts, PARTS[part]
    priced = ExpertsPart(Part(part, content), experts, skew)
    for tokens in (1, 5, 30, 200, 1000, 8192):
        x = routing(
            tokens, experts.hidden, experts.inner, experts.experts, experts.top_k,
            local=experts.local, skew=skew,
        )  # fmt: skip
        moved, work, place = features(Point(part, x), content["constants"])
        expected = form.predict_s(content, moved, work, place)
        assert priced.priced(tokens).ps == pytest.approx(expected * 1e12, rel=1e-9), tokens


WIDEST = "bloom-176b"
"""A model that is wider than any LM head that is measured."""


def dense():
    """Models with four products per layer, and how many GPUs of 141 GB they can be spread over."""
    models = [model_named(name) for name in model_names()]
    recurrent = {model.name for model in models if any(layers.state for layers in model.kv_layers)}
    plain = [model for model in models if not (model.kv_latent_dim or model.active_parameters)]
    plain = [model for model in plain if model.name not in recurrent and model.name != WIDEST]
    return [
        (model.name, tp)
        for model, tp in product(plain, (1, 2, 4, 8))
        if can_split(model, tp) and model.parameters * 2 < 0.95 * tp * H200.memory_bytes
    ]


@pytest.mark.slow
def test_a_full_grid_covers_every_dense_model_and_what_schedulers_do_with_it():
    """The example has its ranges: steps of 1 to 8,192 prompt tokens, batches of 1 to 256, short contexts."""
    shapes = [
        *(StepShape(decode_seqs=n, context_tokens=n * mean) for n in (1, 32, 256) for mean in (1, 16, 8000)),
        *(StepShape(n, n * (n + 1) // 2, 1) for n in (1, 100, 2048, 8192)),
        StepShape(512, 512 * 8000, 3, 200, 200 * 1000),
    ]
    assert len(dense()) > 40
    for name, tp in dense():
        found = cost(name, tp)
        for shape in shapes:
            found.carried_out(shape, found.step_ps(shape))
        assert (name, tp, found.extrapolated_share, found.outside()) == (name, tp, 0.0, [])
    widest = cost(WIDEST, 4)
    widest.carried_out(shapes[0], widest.step_ps(shapes[0]))
    assert [words.partition(":")[0] for words in widest.outside()] == ["lm head"]


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
"""Ranges that the small cases of the random tests sometimes leave."""


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
            engine.replica.recorder.timeline.most_rows = case.timeline_rows
            result, cost = told(engine.run()), engine.replica.pricing.cost
            found.append((result, cost.extrapolated_share, cost.outside()))
        assert found[0] == found[1], f"seed {seed}"
        shares.append(found[0][1])
    assert sum(0 < share < 1 for share in shares) > 12


def squeezed(work):
    """The same requests, arriving at the pace of a calibrated server."""
    return replace(work, arrival_ps=work.arrival_ps // 40)


def test_without_a_profile_the_error_says_what_to_do():
    with pytest.raises(KvsimError, match="measure one with sim calibrate, or use --cost roofline"):
        cost(profile=None)


@given(st.floats(0.1, 9), st.integers(1, 60))
def test_what_lies_outside_is_the_same_in_spans_and_steps_when_each_is_multiplied(factor, steps):
    counted = []
    for spans in (True, False):
        inner = cost(profile=UNEVEN)
        scaled = Scaled(inner, factor)
        ends = scaled.span_ends(3, 100, steps, 10**15)
        if spans:
            scaled.span_carried_out(3, 100, ends)
        else:
            for step, (before, end) in enumerate(pairwise([0, *ends])):
                scaled.carried_out(StepShape(decode_seqs=3, context_tokens=100 + 3 * step), end - before)
        counted.append((inner.extrapolated_share, inner.outside()))
    assert counted[0] == counted[1]
