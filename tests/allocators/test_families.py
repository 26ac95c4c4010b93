"""Every built-in allocator says what it is: the family tree of `sim allocators` has no gaps."""

import pytest

from kvsim.allocators import ALLOCATORS, FAMILIES
from kvsim.sim.deployment.registry import allocator_class

LONGEST = {"idea": 70, "wastes": 60, "used_by": 40, "source": 70}


@pytest.mark.parametrize("name", ALLOCATORS)
def test_an_allocator_names_its_family_idea_waste_user_and_source(name):
    found = allocator_class(name)
    assert found.family in FAMILIES
    for field, longest in LONGEST.items():
        text = getattr(found, field)
        assert 0 < len(text) <= longest, f"{name}.{field} has {len(text)} characters: {text!r}"
        assert "\n" not in text and not text.endswith(".")


def test_every_family_has_a_member():
    assert set(FAMILIES) >= {allocator_class(name).family for name in ALLOCATORS}
