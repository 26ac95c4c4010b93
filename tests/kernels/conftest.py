"""What all tests of kernels share: memory that a kernel asks for is full of NaN."""

import pytest


@pytest.fixture(autouse=True)
def poisoned_memory():
    """`torch.empty` gives NaN: so do the partial results that a kernel makes for itself."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install -e .[test]")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)
