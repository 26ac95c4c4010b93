"""Prefill and decode apart decide, step by step, what two vLLM 0.33.0 schedulers with the NIXL connector do.

Admissions, allocations for whole prompts, reads, what is held and for how long, under pressure on both sides,
with aborts, lost and late answers, synchronous and asynchronous.
"""

import pytest
from support.disaggregated import differences, run
from support.scheduled import names_in, recording

pytestmark = pytest.mark.golden
FOLDER = "pd"


@pytest.mark.parametrize("name", names_in(FOLDER))
def test_every_decision_is_as_in_the_engine(name):
    case = recording(FOLDER, name)
    assert list(differences(case, run(case)))[:3] == []
