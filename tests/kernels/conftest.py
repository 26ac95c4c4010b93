"""Shared by all tests of kernels: memory that a kernel allocates is full of NaN."""

import pytest


@pytest.fixture(autouse=True)
def poisoned_memory():
    """`torch.empty` returns NaN, also for the partial results that a kernel allocates for itself."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)
