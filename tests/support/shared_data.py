"""Reference data next to the checkout, which the product never reads: only tests compare with it."""

import os
from pathlib import Path

import pytest

BESIDE = Path(__file__).resolve().parents[3] / "shared"


def shared(path: str) -> Path:
    """`<repo root>/../shared/<path>`; if it is missing, CI fails and any other run skips the test."""
    return _there(BESIDE / path, f"reference data ../shared/{path} is not here")


def goldens(path: str = "") -> Path:
    """Recordings of genuine engines: a path in $KVSIM_GOLDENS, else in ../shared/goldens; missing as above.

    A directory of goldens may leave out the workloads; those next to the checkout are used then.
    """
    chosen = os.environ.get("KVSIM_GOLDENS")
    if chosen and ((Path(chosen) / path).exists() or not path.startswith("workloads/")):
        return _there(Path(chosen) / path, f"golden {path} is not in KVSIM_GOLDENS")
    return shared(f"goldens/{path}")


def golden_names(folder: str) -> list[str]:
    """Every recording of a folder, to generate tests from; none if they are missing."""
    chosen = Path(os.environ.get("KVSIM_GOLDENS") or BESIDE / "goldens")
    return sorted(path.name for path in (chosen / folder).glob("*.json.gz"))


def missing(reason: str) -> None:
    """Skip the test, or fail in CI, where nothing may be missing."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def _there(path: Path, reason: str) -> Path:
    if not path.exists():
        missing(reason)
    return path
