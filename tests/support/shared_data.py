"""Reference data beside the checkout, which the product never reads: only tests compare with it."""

import os
from pathlib import Path

import pytest


def shared(path: str) -> Path:
    """`<repo root>/../shared/<path>`; where it is missing, CI fails and any other run skips the test."""
    found = Path(__file__).resolve().parents[3] / "shared" / path
    if not found.exists():
        reason = f"reference data ../shared/{path} is not here"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found
