"""A workload refuses columns that cannot be requests, and names the wrong row."""

import numpy as np
import pytest

from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import Beam, Samples, Workload

WHOLE = np.array([3, 5])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([0, 1], [1.0, np.nan], WHOLE), "prompt_tokens must be whole numbers, got nan in row 1"),
        (([0, 1], WHOLE, [np.inf, 1.0]), "output_tokens must be whole numbers, got inf in row 0"),
        (([0, 1], [1.0, 2.5], WHOLE), "prompt_tokens must be whole numbers, got 2.5 in row 1"),
        (([0, 1], [1.0, 2.0], WHOLE), "prompt_tokens must be whole numbers, got float64 numbers"),
        (([0, 1], [1, 0], WHOLE), "prompt_tokens must be at least 1, got 0 in row 1"),
        (([0, 1], WHOLE, [-4, 1]), "output_tokens must be at least 1, got -4 in row 0"),
        (([0, 1], [1, 2, 3], WHOLE), "prompt_tokens has 3 rows, arrival_ps has 2"),
        (([1, 0], WHOLE, WHOLE), "arrival_ps must be non-negative and never decrease"),
        (([-1, 0], WHOLE, WHOLE), "arrival_ps must be non-negative and never decrease"),
    ],
)
def test_what_cannot_be_a_request_is_named_with_its_row(columns, message):
    with pytest.raises(KvsimError) as error:
        Workload("test", *map(np.array, columns))
    assert str(error.value) == message


def test_no_requests_at_all_is_a_workload():
    assert len(Workload("test", *[np.array([], dtype=np.int64)] * 3)) == 0


def samples(offsets, tokens):
    return Samples(np.array(offsets), np.array(tokens))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"content": [()]}, "content has 1 rows, arrival_ps has 2"),
        ({"priority": WHOLE[:1]}, "priority has 1 rows, arrival_ps has 2"),
        ({"priority": WHOLE / 2}, "priority must be whole numbers, got float64 numbers"),
        ({"labels": {"turn": WHOLE[:1]}}, "turn has 1 rows, arrival_ps has 2"),
        ({"beam": Beam(0, "replace:0.1", 0)}, "beam width must be at least 1, got 0"),
        ({"samples": samples([0, 1], [3])}, "samples must have 3 offsets for 2 requests, got 2"),
        ({"samples": samples([0, 1, 3], [3, 5])}, "samples must have offsets from 0 to 2, got 0 to 3"),
        ({"samples": samples([0, 3, 2], [3, 5])}, "samples must be at least 1 per request, got -1 in row 1"),
        ({"samples": samples([0, 2, 2], [3, 5])}, "samples must be at least 1 per request, got 0 in row 1"),
        ({"samples": samples([0, 1, 3], [3, 5, 0])}, "samples must be at least 1 token long, got 0"),
        (
            {"samples": samples([0, 1, 3], [3, 4, 1])},
            "output_tokens must be the longest sample, 4, got 5 in row 1",
        ),
        (
            {"samples": samples([0, 1, 2], WHOLE), "beam": Beam(2, "replace:0.1", 0)},
            "samples must be left out with beam search",
        ),
    ],
)
def test_what_cannot_belong_to_the_requests_is_named(columns, message):
    with pytest.raises(KvsimError) as error:
        Workload("test", np.array([0, 1]), WHOLE, WHOLE, **columns)
    assert str(error.value) == message


def test_samples_are_whole_when_the_longest_is_the_output():
    found = Workload("test", np.array([0, 1]), WHOLE, WHOLE, samples=samples([0, 1, 3], [3, 2, 5]))
    assert found.samples.counts.tolist() == [1, 2]
