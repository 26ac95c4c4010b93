"""Before any test: where there is no GPU, Triton's kernels are interpreted; the user's profiles are hidden.

Triton reads TRITON_INTERPRET when a kernel is defined, so it is set here, before anything imports triton.
Torch, which takes seconds to import, is asked only where a driver is there.
"""

import os
from pathlib import Path

import pytest
from hypothesis import settings


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fuzz N`: more cases for tests/fuzz."""
    parser.addoption("--fuzz", type=int, metavar="N", help="cases of each fuzzer (a few, unless given)")


def gpu_there() -> bool:
    """Whether torch can use a GPU."""
    if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")):
        return False
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


settings.register_profile("untimed", deadline=None)  # machines are shared: no test is timed
settings.load_profile("untimed")
os.environ["KVSIM_PROFILES"] = str(Path(__file__).parent / "no-profiles")  # not those of who tests
if not gpu_there():
    os.environ.setdefault("TRITON_INTERPRET", "1")
