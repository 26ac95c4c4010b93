"""Recordings of genuine engines that kvsim does not follow yet: the tests named here must fail.

A test that passes again fails the run, so that its line is removed here.
"""

import pytest

REASONS: dict[str, str] = {}
"""Test and recording (`test_name[recording]`), or a fault found by a fuzzer -> what is missing."""


def mark(items: list[pytest.Item]) -> None:
    """Expect the tests in REASONS to fail."""
    for item in items:
        if item.name in REASONS:
            item.add_marker(pytest.mark.xfail(reason=REASONS[item.name], strict=True))
