"""With drafts, every step is decided as the genuine vLLM 0.33.0 decides it."""

import pytest
from support.scheduled import names_in, recording
from support.speculated import differences, records

pytestmark = pytest.mark.golden
FOLDER = "spec"


@pytest.mark.parametrize("name", [name for name in names_in(FOLDER) if name != "index.json"])
def test_every_field_of_every_step_is_as_in_the_engine(name):
    case = recording(FOLDER, name)
    assert list(differences(case, records(case)))[:3] == []
