"""Laws of speculative decoding, regardless of engine: tokens, steps, memory and time add up."""

import json
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.serving import everything, workload
from support.settings import server_with

from kvsim.sim.build import build_engine
from kvsim.sim.cost import drafting
from kvsim.sim.cost.drafting import captured
from kvsim.sim.cost.named import cost_named
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.deployment.draft import draft_of, speculation_of
from kvsim.sim.deployment.memory import kv_capacity
from kvsim.sim.deployment.speculation import Speculation, published, rates_of
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.draft import eagle_of, mtp_of
from kvsim.sim.option import listed
from kvsim.sim.record.metrics import request_table, summary
from kvsim.sim.serving.acceptance import NUMBERS, Drawn, least_numbers
from kvsim.sim.serving.courses import Ruled
from kvsim.sim.serving.request import Request

MODEL = model_named("llama-3.1-8b")


def server(said=None, cost="constant:1", **settings):
    """A server that speculates with these options."""
    config = {} if said is None else {"speculative_config": json.dumps(said)}
    blocks = {} if "kv_tokens" in settings else {"num_gpu_blocks": settings.pop("num_gpu_blocks", 400)}
    usual = {"model": MODEL.name, "gpu": "h100", "max_model_len": 512}
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 8}
    asked = server_with(cost=cost, **usual | limits | blocks | settings | config)
    return asked.deployed()


def eagle(drafts, length=None, rates=None, **more):
    """A user's options for EAGLE-3."""
    said = {"method": "eagle3", "num_speculative_tokens": drafts, **more}
    return (
        said
        | ({"synthetic_acceptance_rates": rates} if rates is not None else {})
        | ({"synthetic_acceptance_length": length} if length is not None else {})
    )


def served(where, work, **options):
    """The result of a run whose memory is recounted in every step."""
    return build_engine(where, work, check=True, **options).run()


# -- acceptance ---------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_as_many_numbers_accept_a_draft_as_its_rate_and_those_before_it_say(rates):
    found = np.searchsorted(least_numbers(rates), np.arange(NUMBERS), "right")
    assert found.min() >= 1
    for place, chance in enumerate(np.cumprod(rates), 1):
        assert (found > place).mean() == pytest.approx(chance, abs=1 / NUMBERS)
        assert chance not in {0, 1} or (found > place).mean() == chance


@given(st.integers(1, 8), st.floats(0, 1))
def test_the_rates_of_a_mean_length_give_that_length(most, share):
    length = 1 + share * most
    rates = rates_of(length, most)
    assert len(rates) == most
    assert 1 + sum(np.cumprod(rates)) == pytest.approx(length)


def test_a_length_of_2_83_with_three_drafts_is_as_in_the_synthetic_sampler():
    assert rates_of(2.83, 3) == pytest.approx((1, 0.83, 0))


@pytest.mark.parametrize("name", published())
def test_published_numbers_say_where_they_are_from_and_give_their_length(name):
    entry = published()[name]
    assert entry["source"]
    if "lengths" in entry:
        for most, length in enumerate(entry["lengths"], 1):
            said = Speculation("eagle3", most, acceptance=name)
            assert 1 + sum(np.cumprod(said.rates)) == pytest.approx(length)
    else:
        most = len(entry["at_each_place"])
        assert np.cumprod(Speculation("mtp", most, acceptance=name).rates) == pytest.approx(
            entry["at_each_place"]
        )


def test_draws_follow_the_rates_and_depend_on_request_and_seed_alone():
    def mean(seed):
        drawn = Drawn((0.8, 0.5, 0.9), seed)
        each = [[drawn.event(Request(row, 8, 8), event)[1] for event in range(40)] for row in range(200)]
        return each, np.mean(each)

    first, found = mean(3)
    assert found == pytest.approx(0.8 + 0.4 + 0.36, abs=0.05)
    assert mean(3)[0] == first != mean(4)[0]
    assert len({tuple(row) for row in first}) == len(first)


def one_by_one(drawn, request, event, course, ruled):
    """Assert that a course is what its events give one after the other."""
    (drafts, unit, beyond), first = ruled, course.first
    counts = course.counts[first : first + course.steps + 1].tolist()
    steps = [min(drawn.event(request, event + step)[1], drafts) + 1 for step in range(len(counts) - 1)]
    assert [*np.diff(counts).tolist()] == [*steps[:-1], *[last - course.over for last in steps[-1:]]]
    assert counts[-2:-1] in ([], [course.before_last])
    filled = [(stored + beyond) // unit for stored in counts]
    assert course.filled == filled[0]
    assert course.fills == [first + at for at in range(1, len(counts)) if filled[at] > filled[at - 1]]


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
    st.integers(0, 150),
    st.integers(0, 900),
    st.integers(8, 16),
    st.data(),
)
def test_events_foreseen_together_are_those_that_are_drawn_one_by_one(rates, event, missing, unit, data):
    ruled = Ruled(data.draw(st.integers(0, len(rates))), unit, data.draw(st.integers(0, 20)))
    request = Request(data.draw(st.integers(0, 1 << 30)), 70, missing + 1)
    request.sample = data.draw(st.integers(0, 2))
    drawn = Drawn(rates, 1)
    request.base = 70
    (course,) = drawn.ahead([(request, event)], ruled)
    assert (course.stored(0), course.stored(course.steps)) == (70, 70 + missing)
    one_by_one(drawn, request, event, course, ruled)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 60)), min_size=1, max_size=200),
    st.data(),
)
def test_requests_in_any_order_and_of_any_length_are_foreseen_as_each_of_them_alone(rates, rows, data):
    drawn, draw = Drawn(rates, 1, tuple(np.array(rows).T)), data.draw
    kinds = [Ruled(len(rates), 16, 5), Ruled(len(rates), 16, 5), Ruled(0, 16, 5), Ruled(len(rates), 16, 9)]
    for _ in range(20):
        row, ruled = draw(st.integers(0, len(rows) - 1)), draw(st.sampled_from(kinds))
        prompt, answer = draw(st.sampled_from([rows[row], rows[row], (33, 44)]))
        asked = [(Request(row, prompt, answer), 1), (Request(row, 40, 30), draw(st.integers(1, 9)))]
        for request, _ in asked:
            request.base = request.prompt_tokens
        for (request, event), course in zip(asked, drawn.ahead(asked, ruled), strict=True):
            assert (course.stored(0), course.stored(course.steps)) == (request.base, request.final_tokens)
            one_by_one(drawn, request, event, course, ruled)


# -- tokens and steps ---------------------------------------------------------------------------


@pytest.mark.parametrize("drafts", [1, 2, 5])
@pytest.mark.parametrize("answer", [1, 2, 7, 30])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_alone_and_always_right_an_answer_takes_a_step_for_each_k_plus_1_tokens(drafts, answer, asynchronous):
    where = server(eagle(drafts, drafts + 1), async_scheduling=asynchronous)
    result = served(where, workload([(0, 20, answer)]))
    steps = 1 + -(-(answer - 1) // (drafts + 1))
    assert result.requests["finish_ps"][0] == steps * 10**12


@pytest.mark.parametrize("asynchronous", [False, True])
def test_with_nothing_right_every_step_gives_a_token(asynchronous):
    rows = [(0, 20, 9), (0, 30, 14), (3, 5, 6)]
    plain = served(server(async_scheduling=asynchronous), workload(rows))
    wrong = served(server(eagle(3, 1), async_scheduling=asynchronous), workload(rows))
    for name in ("first_token_ps", "finish_ps"):
        assert wrong.requests[name].tolist() == plain.requests[name].tolist()


@pytest.mark.parametrize("method", ["ngram", "eagle", "mtp", "draft_model"])
@pytest.mark.parametrize("asynchronous", [False, True])
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 90), st.integers(1, 60)), min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(0, 4),
    st.integers(12, 24),
    st.booleans(),
)
def test_every_answer_is_complete_and_the_memory_adds_up_in_every_step(
    method, asynchronous, rows, drafts, length, blocks, caching
):
    rows = sorted(rows)
    said = {"method": method, "num_speculative_tokens": drafts}
    said["synthetic_acceptance_length"] = 1 + min(length, drafts) * 0.7
    if method == "draft_model":
        said["model"] = "llama-3.1-8b"
    if method == "mtp":
        said["num_nextn_predict_layers"] = 1 + drafts % 2
    where = server(
        said,
        num_gpu_blocks=blocks,
        async_scheduling=asynchronous and method != "ngram",
        enable_prefix_caching=caching,
    )
    result = served(where, workload(rows))
    table = request_table(result)
    assert result.finished.all()
    assert table["output_tokens"].tolist() == [answer for _, _, answer in rows]
    told = result.drafts
    assert told.accepted <= told.drafted <= told.verified * drafts
    assert sum(row[2] for row in told.rows.values()) == told.accepted
    assert result.token_gaps.count == sum(answer - 1 for _, _, answer in rows)


@pytest.mark.parametrize("cost", ["constant:0.03", "roofline", "measured-elsewhere"])
@given(st.data())
def test_many_steps_at_a_time_are_the_same_as_one_step_and_one_sequence_after_the_other(cost, data):
    draw = data.draw
    drafts, method = draw(st.integers(1, 5)), draw(st.sampled_from(["eagle3", "mtp", "ngram", "ngram_gpu"]))
    said = {
        "method": method,
        "num_speculative_tokens": drafts,
        "num_nextn_predict_layers": draw(st.integers(1, 2)),
    }
    said["synthetic_acceptance_rates"] = draw(st.lists(st.floats(0, 1), min_size=drafts, max_size=drafts))
    if draw(st.booleans()):
        fewer = draw(st.integers(0, drafts))
        said["num_speculative_tokens_per_batch_size"] = [[1, 2, drafts], [3, 8, fewer]]
    span_s = draw(st.sampled_from([0.3, 3, 30]))
    row = st.tuples(st.floats(0, 1), st.integers(1, 120), st.integers(1, 150), st.integers(0, 64))
    rows = sorted(draw(st.lists(row, min_size=1, max_size=10)))
    work = replace(
        workload([(span_s * at, prompt, answer) for at, prompt, answer, _ in rows]),
        content=[((0, 0, min(shared, prompt)),) if shared else () for _, prompt, _, shared in rows],
        seed=draw(st.integers(0, 9)),
    )
    where = server(
        said,
        cost,
        num_gpu_blocks=draw(st.integers(20, 150)),
        max_model_len=draw(st.sampled_from([200, 256, 512])),
        max_num_batched_tokens=draw(st.sampled_from([16, 32, 64, 256])),
        max_num_seqs=draw(st.sampled_from([2, 8])),
        enable_prefix_caching=draw(st.booleans()),
        async_scheduling=method != "ngram" and draw(st.booleans()),
    )
    engines = [build_engine(where, work, check=True, max_span=most) for most in (1, 1, 1 << 20)]
    visiting, slow, fast = engines
    visiting.replica.scheduler.steps.regular = visiting.replica.server.batch.ahead = None
    found = [everything(engine.run()) for engine in (visiting, slow, fast)]
    told = [vars(each.pop("drafts")) for each in found]
    assert told[0] == told[1] == told[2]
    assert found[0].pop("timeline") == found[1].pop("timeline")
    found[2].pop("timeline")  # spans have fewer instants
    assert found[0] == found[1] == found[2]
    shares = {engine.replica.pricing.cost.extrapolated_share for engine in engines}
    assert len(shares) == 1


@pytest.mark.parametrize("method", ["ngram", "eagle3"])
def test_drafts_that_the_budget_does_not_hold_are_trimmed_from_the_first_step_on(method):
    said = {"method": method, "num_speculative_tokens": 5, "synthetic_acceptance_length": 1}
    where = server(said, max_num_batched_tokens=16, async_scheduling=False)
    result = served(where, workload([(0, 1, 2)] * 3))
    assert result.drafts.rows == {0: (1, 5, 0), 1: (1, 5, 0), 2: (1, 3, 0)}


def test_what_was_recorded_is_what_happens():
    work = workload([(0, 10, 12)])
    drafts = np.empty(1, dtype=object)
    drafts[0] = ((3, 0), (3, 2), (3, 0), (0, 3), (3, 3), (3, 3))
    result = served(server(eagle(3), async_scheduling=False), replace(work, drafts=drafts))
    # tokens of each step: 1, then 3, 1, 4, 1 without a draft, and 2 of the last 4
    assert result.requests["finish_ps"][0] == 6 * 10**12
    assert result.drafts.rows == {0: (4, 12, 8)}


def test_summary_and_requests_tell_what_became_of_drafts():
    result = served(server(eagle(2, 2)), workload([(0, 20, 31), (0, 30, 1)]))
    table = request_table(result)
    told = summary(result, table)["speculation"]
    assert (told["acceptance_length"], told["acceptance_rate"]) == (2, 0.5)
    assert told["draft_tokens"] - told["accepted_tokens"] <= told["wasted_tokens"]
    assert table["acceptance_length"][0] == 2
    assert np.isnan(table["acceptance_length"][1])
    assert table["draft_tokens"].tolist() == [30, 0]


# -- memory -------------------------------------------------------------------------------------


def test_slots_for_drafts_are_reserved_from_the_prompt_on():
    plain, drafting = (
        served(server(said, async_scheduling=False), workload([(0, 16, 5)])) for said in (None, eagle(4, 1))
    )
    assert plain.timeline["reserved"][0] == 0  # a prompt of one whole block
    assert drafting.timeline["reserved"][0] + drafting.timeline["internal"][0] == 16


def test_a_draft_takes_weights_and_a_layer_of_keys_and_values():
    plain, drafting = (
        server(kv_tokens=None, num_gpu_blocks=None),
        server(eagle(3, 2), kv_tokens=None, num_gpu_blocks=None),
    )
    draft = draft_of(drafting)
    assert draft.weight_bytes == pytest.approx(849e6, rel=0.01)  # the published checkpoint
    assert draft.kv_bytes_per_token(1) == MODEL.kv_bytes_per_token // MODEL.layers
    before, after = kv_capacity(plain).tokens, kv_capacity(drafting).tokens
    left = before * MODEL.kv_bytes_per_token - draft.weight_bytes
    assert after == pytest.approx(left / (MODEL.kv_bytes_per_token * 33 / 32), rel=1e-3)


def test_modules_of_deepseek_v3_are_as_large_as_published():
    draft = mtp_of(model_named("deepseek-v3"), 1)
    assert 11e9 < draft.weight_bytes < 14.1e9  # 14 B parameters in 8 bits, 2.5 of them the shared embeddings
    assert model_named("deepseek-v3").mtp_modules == 1


def test_eagle_3_has_its_published_size():
    assert eagle_of(MODEL, third=True).weight_bytes / 2 == pytest.approx(425e6, rel=0.005)


# -- time ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", ["roofline", "measured-elsewhere"])
@given(st.integers(1, 256), st.integers(1, 4000), st.integers(1, 7))
def test_speculation_is_never_faster_than_k_plus_1_times(cost, seqs, context, drafts):
    found = timed(cost, drafts)
    plain = found.step_ps(StepShape(decode_seqs=seqs, context_tokens=seqs * context))
    step = StepShape(
        decode_seqs=seqs, context_tokens=seqs * context, draft_tokens=seqs * drafts, draft_passes=drafts
    )
    assert plain <= found.step_ps(step)


@pytest.mark.parametrize("cost", ["roofline", "measured-elsewhere"])
def test_it_helps_alone_and_hurts_in_large_batches(cost):
    found, drafts, length = timed(cost, 3), 3, 2.0

    def gain(seqs):
        plain = StepShape(decode_seqs=seqs, context_tokens=seqs * 100)
        step = plain._replace(draft_tokens=seqs * drafts, draft_passes=drafts)
        return length * found.step_ps(plain) / found.step_ps(step)

    assert gain(1) > 1.4
    assert gain(512) < 1


@pytest.mark.parametrize(
    ("drafts", "seqs", "budget", "most", "first", "last"),
    [
        (1, 256, 8192, 512, (2, 4, 8, 16), 512),
        (1, 256, 8192, 1024, (2, 4, 8, 16), 1024),
        (2, 256, 8192, 512, (3, 6, 9, 12, 18, 24), 504),
        (2, 256, 8192, 1024, (3, 6, 9, 12, 18, 24), 1008),
        (2, 10, 8192, 512, (3, 6, 9, 12, 18, 24, 30, 33, 42, 48), 48),
        (3, 8, 8192, 512, (4, 8, 16, 24), 64),
        (3, 100, 8192, 1024, (4, 8, 16, 24), 800),
        (5, 1024, 64, 512, (6, 12, 18, 24), 60),
        (7, 1, 8192, 512, (8, 16), 16),
        (9, 8, 8, 512, (), None),
    ],
)
def test_graphs_are_captured_for_whole_sequences_with_their_drafts(drafts, seqs, budget, most, first, last):
    sizes = captured(drafts, seqs, budget, most)
    assert sizes[: len(first)] == first
    assert (sizes[-1] if sizes else None) == last
    assert all(size % (drafts + 1) == 0 for size in sizes)


@pytest.mark.parametrize("cost", ["roofline", "measured-elsewhere"])
def test_a_step_takes_as_long_as_the_next_captured_graph(cost):
    found, drafts = timed(cost, 2), 2  # graphs of 24, 33, ... tokens

    def step_ps(seqs, more=0):
        return found.step_ps(
            StepShape(decode_seqs=seqs, context_tokens=9_000, draft_tokens=seqs * drafts + more)
        )

    assert step_ps(9) == step_ps(9, more=6)  # 27 tokens, and the 33 that are computed
    assert step_ps(11) != step_ps(11, more=1)
    beyond = StepShape(decode_seqs=200, context_tokens=9_000, draft_tokens=400)  # no graph is as large
    assert found.step_ps(beyond) < found.step_ps(beyond._replace(draft_tokens=430))


@pytest.mark.parametrize("cost", ["calibrated", "measured-elsewhere"])
def test_times_between_computed_ones_are_close_to_what_these_steps_take(cost):
    """Contexts differ; where attention begins to cut them, a line cuts the corner."""
    found, draw = timed(cost, 3, gpu="h200" if cost == "calibrated" else "h100"), Random(0)
    steps = []
    for seqs, mean in [(draw.randint(1, 200), draw.uniform(5, 5000)) for _ in range(300)]:
        steps.append(StepShape(0, 0, 0, seqs, int(seqs * mean), draft_tokens=3 * seqs, draft_passes=3))
    on_lines = [found.step_ps(step) for step in steps]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(drafting, "_only_verifies", lambda _: False)
        exact = [found.step_ps(step) for step in steps]
    errors = np.abs(np.array(on_lines) / np.array(exact) - 1)
    assert 0 < errors.mean() < 0.001 and errors.max() < 0.01


@pytest.mark.parametrize("cost", ["calibrated", "measured-elsewhere"])
@pytest.mark.parametrize("rate", [2, 30])
def test_on_a_measured_clock_spans_are_steps_also_in_what_lies_outside(cost, rate):
    gpu = "h200" if cost == "calibrated" else "h100"
    where = server(eagle(3, 2.4), cost=cost, gpu=gpu, max_num_seqs=16, max_num_batched_tokens=256)
    draw, now_s, requests = Random(rate), 0.0, []
    for _ in range(60):
        now_s += draw.expovariate(rate)
        requests.append((now_s, draw.randint(1, 200), draw.randint(1, 200)))
    found = []
    for most in (1, 1 << 20):
        engine = build_engine(where, workload(requests), check=True, max_span=most)
        result, clock = everything(engine.run()), engine.replica.pricing.cost
        found.append((result, clock.extrapolated_share, clock.outside()))
    assert found[0] == found[1]
    assert (found[0][1] > 0) == (cost == "measured-elsewhere")


TIMED = {}


def timed(cost, drafts, gpu="h100"):
    """The cost of steps with this many drafts of EAGLE-3."""
    if (cost, drafts) not in TIMED:
        from kvsim.sim.options.scenario import Scenario

        own = {"speculative_config": json.dumps(eagle(drafts, 2))}
        asked = Scenario(model="llama-3.1-8b", gpu=gpu, cost=cost, async_scheduling=True, options=own)
        TIMED[cost, drafts] = cost_named(cost, asked.deployed())
    return TIMED[cost, drafts]


# -- what users say -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("{", "speculative_config must be JSON"),
        ("[]", "speculative_config must be an object"),
        ('{"method": "eagle3"}', "must have num_speculative_tokens"),
        ('{"method": "eagel3", "num_speculative_tokens": 3}', "did you mean 'eagle3'"),
        ('{"method": "eagle3", "num_speculative_tokens": 0}', "from 1 to 64, got 0"),
        ('{"method": "eagle3", "num_speculative_token": 3}', "did you mean 'num_speculative_tokens'"),
        ('{"method": "draft_model", "num_speculative_tokens": 3}', "must have model"),
        (json.dumps(eagle(3, 4.5)), "from 1 to 4 "),
        (json.dumps(eagle(3, rates=[1, 1])), "must be 3 numbers"),
        (json.dumps(eagle(1, 1, rates=[1])), "must be left out"),
        (json.dumps(eagle(9, acceptance="minimax-m3-eagle3")), "at most 8"),
        (json.dumps(eagle(3, acceptance="nobody")), "acceptance 'nobody' is unknown"),
        (json.dumps(eagle(3, 2, num_speculative_tokens_per_batch_size=[[4, 2, 1]])), "got [4, 2, 1]"),
        (json.dumps(eagle(3, 2, num_speculative_tokens_per_batch_size=[[1, 4, 3], [4, 8, 1]])), "ascending"),
    ],
)
def test_a_mistake_is_told_in_a_line(said, told):
    with pytest.raises(KvsimError) as error:
        Speculation.of_json(said)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_who_does_not_say_what_is_accepted_is_told_how():
    with pytest.raises(KvsimError, match="synthetic_acceptance_length"):
        build_engine(server(eagle(3)), workload([(0, 5, 5)]))


def test_a_tier_below_the_gpu_does_not_go_with_it_however_it_is_said():
    for said in (eagle(3, 2), None):
        short = {"speculative_method": "eagle3", "num_speculative_tokens": 3, "acceptance_length": 2.0}
        short = {} if said else short
        where = server(said, kv_offloading_size="1GiB", enable_prefix_caching=True, **short)
        with pytest.raises(KvsimError, match="must be left out with kv_offloading_size"):
            build_engine(where, workload([(0, 5, 5)]))


@pytest.mark.parametrize("name", ["long_prefill_token_threshold", "max_num_batched_tokens"])
def test_steps_too_small_for_the_last_tokens_of_a_prompt_are_told(name):
    """vLLM would hold them back forever."""
    said = {"method": "mtp", "num_speculative_tokens": 4, "num_nextn_predict_layers": 2}
    said["synthetic_acceptance_length"] = 2
    work = workload([(0, 29, 29), (0, 29, 1), (0, 90, 30)])
    with pytest.raises(KvsimError, match=f"{name} must be at least 4 with several modules of MTP"):
        build_engine(server(said, max_num_seqs=2, **{name: 3}), work)
    found = served(server(said, max_num_seqs=2, **{name: 4}), work)
    assert found.finished.all()


def test_other_schedulers_and_older_releases_refuse_it():
    with pytest.raises(KvsimError, match="speculative_config"):
        build_engine(server(eagle(3, 2), scheduler="orca"), workload([(0, 5, 5)]))
    with pytest.raises(KvsimError, match="speculative_config"):
        build_engine(server(eagle(3, 2), scheduler="vllm-v1@0.11.0"), workload([(0, 5, 5)]))


def test_ngram_on_the_host_is_synchronous_as_in_vllm():
    said = {"method": "ngram", "num_speculative_tokens": 2, "synthetic_acceptance_length": 1.5}
    engine = build_engine(server(said), workload([(0, 5, 5)]))
    assert not engine.replica.scheduler.asynchronous
    with pytest.raises(KvsimError, match="async_scheduling must be off"):
        build_engine(server(said, async_scheduling=True), workload([(0, 5, 5)]))


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    rows, where = [(0, 20, 80), (1, 30, 90)], server(eagle(3, rates=[0.7, 0.6, 0.5]))
    one, two, other = (everything(served(where, replace(workload(rows), seed=seed))) for seed in (1, 1, 2))
    one.pop("drafts"), two.pop("drafts"), other.pop("drafts")
    assert one == two != other


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("1,2", ["1", "2"]),
        ('default,{"a": [1, 2], "b": "x,y"},{"c": 3}', ["default", '{"a": [1, 2], "b": "x,y"}', '{"c": 3}']),
        ("", [""]),
    ],
)
def test_commas_inside_json_part_nothing(text, parts):
    assert listed(text) == parts


def test_short_options_say_the_same_and_none_of_them_says_nothing():
    said = {"speculative_method": "eagle3", "num_speculative_tokens": 2, "acceptance_length": 1.5}
    assert Speculation.of_options(said) == Speculation.of(eagle(2, 1.5))
    assert Speculation.of_options({"speculative_config": json.dumps(eagle(5, 2)), **said}) == Speculation.of(
        eagle(2, 1.5)
    )
    assert Speculation.of_options(dict.fromkeys(said)) is None
    assert Speculation.of_options(said | {"num_speculative_tokens": 0}) is None
    with pytest.raises(KvsimError, match="must have method"):
        Speculation.of_options({"num_speculative_tokens": 2})


@pytest.mark.parametrize("asynchronous", [False, True])
def test_without_drafts_every_number_is_that_of_an_engine_that_does_not_speculate(asynchronous):
    rows = [(0, 20, 80), (1, 30, 90), (2.5, 7, 40)]
    plain, none = (
        everything(served(server(async_scheduling=asynchronous, **said), workload(rows)))
        for said in ({}, {"num_speculative_tokens": 0, "speculative_method": "eagle3"})
    )
    assert plain == none


def test_a_deployment_knows_its_speculation():
    assert speculation_of(server()) is None
    assert speculation_of(server(eagle(3, 2))).num_speculative_tokens == 3
