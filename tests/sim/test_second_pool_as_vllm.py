"""A second pool below the GPU's decides, step by step, what vLLM 0.33.0's SimpleCPUOffloadConnector decides.

Look-ups and what they hold, admissions, loads, stores, the lazy cursor, flushes, block tables, both queues of
free blocks, both maps: under preemption and aborts, synchronous and asynchronous, eager and lazy.
"""

import pytest
from support.scheduled import names_in, recording
from support.second_pool import NotedSecond, differences

pytestmark = pytest.mark.golden
FOLDER = "simple_offload"


@pytest.mark.parametrize("name", names_in(FOLDER))
def test_every_decision_is_as_in_the_engine(name):
    case = recording(FOLDER, name)
    assert list(differences(case, NotedSecond(case).run()))[:3] == []
