"""Reservations by prediction: buckets, their accuracy, and what happens to answers that turn out longer."""

from math import inf

import pytest

from kvsim import simulate
from kvsim.sim.deployment.engine import split_reserve
from kvsim.sim.deployment.prediction import NAMED, Predictor, predictor_named
from kvsim.sim.errors import KvsimError
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.reservation import reservation


def test_a_right_bucket_is_the_smallest_that_holds_the_answer():
    right = Predictor(buckets=10)
    for tokens in range(1, 2_049):
        said = right.tokens(0, tokens, 2_048)
        assert tokens <= said <= tokens + -(-2_048 // 10)
        assert said in {-(-k * 2_048 // 10) for k in range(1, 11)}


@pytest.mark.slow
def test_a_bucket_is_right_as_often_as_the_predictor_says():
    right, wrong = Predictor(buckets=10), predictor_named("buckets-10-0.77")
    answers = [(index, 1 + 37 * index % 2_000) for index in range(20_000)]
    hits = sum(wrong.tokens(*each, 2_048) == right.tokens(*each, 2_048) for each in answers)
    # below the first and above the last bucket there is none: there half of the errors are none
    ends = sum(not 205 <= tokens - 1 < 1_843 for _, tokens in answers) / len(answers)
    assert hits / len(answers) == pytest.approx(0.77 + 0.23 * ends / 2, abs=0.01)


def test_noise_is_log_normal():
    said = [Predictor(noise=0.5).tokens(index, 100, 10**9) for index in range(4_000)]
    assert sorted(said)[2_000] == pytest.approx(100, rel=0.05)
    assert sum(tokens > 100 * 2.718**0.5 for tokens in said) / 4_000 == pytest.approx(0.159, abs=0.02)


def test_every_allocator_is_told_the_same():
    one, two = predictor_named("noise-1"), predictor_named("noise-1")
    assert [one.tokens(i, 50, 999) for i in range(99)] == [two.tokens(i, 50, 999) for i in range(99)]


@pytest.mark.parametrize(
    "model", ["", "s4", "buckets-0-1", "buckets-10-1.1", "buckets-10", "noise", "noise--1"]
)
def test_an_unknown_predictor_is_refused(model):
    with pytest.raises(KvsimError, match="reserve must be predicted:MODEL with MODEL s3, s3-nq"):
        predictor_named(model)


def test_named_predictors_are_there():
    assert {name: predictor_named(name).accuracy for name in NAMED} == {
        "s3": 0.9861,
        "s3-nq": 0.7713,
        "s3-pile": 0.656,
    }


def test_a_reservation_that_was_too_short_comes_back_doubled():
    bound = reservation("predicted:buckets-16-1", 2_048)
    request = Request(0, 100, 130)
    assert [bound(request), bound.at_last(request)] == [100 + 256, 100 + 256]
    short = reservation("predicted:noise-0", 2_048)
    request.outgrown = 2
    assert short(request) == 100 + 4 * 130
    request.outgrown = 9
    assert short(request) == 2_048


def test_an_allocator_names_its_reservation():
    assert split_reserve("contiguous") == ("contiguous", None)
    assert split_reserve("buddy:pow2") == ("buddy", "pow2")
    assert split_reserve(" buddy:predicted:s3 ") == ("buddy", "predicted:s3")
    assert split_reserve("my.module:Mine") == ("my.module:Mine", None)
    assert split_reserve("my.module:Mine:oracle") == ("my.module:Mine", "oracle")
    assert split_reserve("my.module:Mine:predicted:noise-1") == ("my.module:Mine", "predicted:noise-1")


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["orca", "vllm-v1", "static"])
def test_who_outgrows_its_reservation_leaves_alone_and_ends_in_a_larger_one(scheduler):
    run = simulate(
        allocator="contiguous:predicted:noise-0.7", scheduler=scheduler, request_rate=inf, num_prompts=120
    )
    requests = run.requests
    assert (requests["status"] == "finished").all()
    short = 0
    for index, row in enumerate(requests.itertuples()):
        said = Predictor(noise=0.7).tokens(index, row.output_tokens, 2_048)
        reserved, stays = row.prompt_tokens + said, 0
        while reserved < row.prompt_tokens + row.output_tokens - 1 and reserved < 2_048:
            stays += 1
            reserved = row.prompt_tokens + (said << stays)
        assert row.num_preemptions == stays, (index, row)
        short += stays > 0
    assert short > 10
    assert run.summary["engine"]["preemptions_recompute"] == requests["num_preemptions"].sum()


def test_a_right_prediction_is_never_outgrown():
    run = simulate(allocator="buddy:predicted:buckets-20-1", request_rate=inf, num_prompts=60)
    assert run.summary["engine"]["preemptions_recompute"] == 0
