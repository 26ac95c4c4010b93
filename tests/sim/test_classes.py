"""A user's own class behind a name: errors say in one line what it must be."""

import pytest

from kvsim.allocators.base import Allocator
from kvsim.allocators.contiguous import Contiguous
from kvsim.sim.classes import class_named, name_of
from kvsim.sim.deployment.registry import ALLOCATORS
from kvsim.sim.errors import KvsimError
from kvsim.sim.schedulers.vllm_v1 import VllmV1


class Whole(Contiguous):
    pass


class Half(Allocator):
    def capacity(self, seq: int) -> int:
        return 0


def test_a_class_handed_over_is_found_by_its_name():
    assert class_named("allocator", name_of(Whole), ALLOCATORS, Allocator) is Whole


@pytest.mark.parametrize("chosen", [VllmV1, dict])
def test_a_class_of_another_kind_is_refused(chosen):
    """Also after other classes were found to be allocators: nothing about classes is cached."""
    assert isinstance(Whole(1600), Allocator)
    with pytest.raises(KvsimError, match=r"must be a subclass of kvsim\.allocators\.base\.Allocator"):
        class_named("allocator", name_of(chosen), ALLOCATORS, Allocator)


def test_methods_that_are_missing_are_named():
    with pytest.raises(
        KvsimError, match=r"test_classes:Half' does not say .*release.*, as each Allocator must"
    ) as said:
        class_named("allocator", name_of(Half), ALLOCATORS, Allocator)
    assert "capacity" not in str(said.value)
