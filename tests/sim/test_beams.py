"""Beam search in spans: whoever looks ahead finds the survivors that are drawn step by step."""

import pytest

from kvsim.sim.serving.beam import DRAWS_AT_ONCE, Survivors
from kvsim.sim.workload import Beam


def in_steps(survivors: Survivors, searches: int, steps: int):
    """(step, search, parents) of all that drop somebody."""
    drawn = [(step, each, survivors.parents()) for step in range(steps) for each in range(searches)]
    return [row for row in drawn if row[2] is not None]


def in_spans(survivors: Survivors, searches: int, steps: int):
    """The same, looking ahead; also the longest span."""
    found, step, longest = [], 0, 0
    while step < steps:
        count = min(survivors.steps_alike(searches), steps - step)
        longest = max(longest, count)
        survivors.pass_over((count - 1) * searches)
        step += count
        each = survivors.first_dropping(searches)
        while each < searches:
            parents = survivors.parents()
            if parents is not None:
                found.append((step - 1, each, parents))
            each += 1
            each += survivors.first_dropping(searches - each)
    return found, longest


@pytest.mark.parametrize("searches", [1, 3, 7])
@pytest.mark.parametrize("process", ["uniform", "replace:0", "replace:0.01", "replace:0.3", "replace:1"])
def test_looking_ahead_draws_the_same_survivors(process, searches):
    steps = 2 * DRAWS_AT_ONCE // searches  # more than are drawn at once
    beam = Beam(4, process, 3)
    found, longest = in_spans(Survivors(beam), searches, steps)
    assert found == in_steps(Survivors(beam), searches, steps)
    assert (longest == 1) == (process in {"uniform", "replace:1"})
