"""`--policy priority` decides, step by step, what the genuine vLLM 0.33.0 decides."""

import pytest
from support.scheduled import differences, names_in, recording, records

pytestmark = pytest.mark.golden
FOLDER = "policies/vllm_priority"


@pytest.mark.parametrize("name", names_in(FOLDER))
def test_every_decision_is_as_in_the_engine(name):
    case = recording(FOLDER, name)
    assert list(differences(case, records(case)))[:3] == []
