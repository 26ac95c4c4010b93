"""A workload refuses columns that cannot be requests, and says which row is wrong."""

import numpy as np
import pytest

from sim.errors import KvsimError
from sim.workload import Workload

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
