"""What SGLang's scheduler expects, if the lengths of answers are known."""

from random import Random

import pytest

from kvsim.sim.errors import KvsimError
from kvsim.sim.option import taken
from kvsim.sim.schedulers.sglang import SglangOptions
from kvsim.sim.schedulers.sglang_budget import Budget, FixedAnswers


def lasts(free, answers):
    """The same, counted at the end of each answer: the memory has more than one token per sequence."""
    return all(
        free
        + sum(held for left, held in answers if left < now)
        - now * sum(left >= now for left, _ in answers)
        > sum(left >= now for left, _ in answers)
        for now, _ in answers
    )


@pytest.mark.parametrize("seed", range(200))
def test_answers_fit_if_the_memory_lasts_until_each_has_ended(seed):
    rng = Random(seed)
    answers = [(rng.randint(1, 9), rng.randint(1, 20)) for _ in range(rng.randint(1, 6))]
    known = FixedAnswers(answers[1:])
    known.add(*answers[0])
    fits = [known.fit(free) for free in range(90)]
    assert fits == [lasts(free, answers) for free in range(90)]
    assert not fits[0]
    assert fits[89]


def test_an_answer_that_has_ended_counts_for_nothing():
    known = FixedAnswers([(0, 50)])
    known.add(2, 5)
    assert not known.fit(3)
    assert known.fit(4)


def test_a_prompt_enters_when_lengths_are_known_where_an_estimate_would_keep_it_out():
    answers = [(20, 10), (20, 10)]
    known = FixedAnswers(answers[1:])
    known.add(*answers[0])
    budget = Budget(free=80, page_size=1, decoding=40, most_tokens=64, chunked=False, mixed=0)
    assert budget.admit(0, 20, 20) is None
    assert budget.admit_fixed(20, 20, known) == 20


def test_a_longest_answer_is_refused_where_every_answer_is_as_long_as_asked():
    with pytest.raises(KvsimError, match="max_tokens must be left out with ignore_eos"):
        taken(SglangOptions, {"max_tokens": 9, "ignore_eos": True})
