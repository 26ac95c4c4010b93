"""A CPU tier below the GPU's memory decides, step by step, what vLLM 0.33.0's OffloadingConnector decides.

Look-ups, admissions, loads, stores, what the tier accepts and evicts, requests waited for, block tables, the
tier itself: under preemption and aborts, synchronous and asynchronous, with LRU and ARC.
"""

import pytest
from support.offloaded import Noted, differences
from support.scheduled import names_in, recording

pytestmark = pytest.mark.golden
FOLDER = "offload_loop"


@pytest.mark.parametrize("name", names_in(FOLDER))
def test_every_decision_is_as_in_the_engine(name):
    case = recording(FOLDER, name)
    assert list(differences(case, Noted(case).run()))[:3] == []
