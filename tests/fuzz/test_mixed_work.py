"""Tiers, drafts, policies, pools, deaths and scaling, mixed at random: both modes agree, nothing is lost.

A case is a few milliseconds of integers, so that `--fuzz 100000` is a matter of an hour; the command lines of
test_modes.py try the same with files.
"""

import pytest
from support.attack import tried
from support.mixed import agree, draw_mixture

pytestmark = pytest.mark.slow


def test_mixed_work_is_the_same_in_both_modes_and_nothing_is_lost(cases):
    def case(rng):
        try:
            return agree(draw_mixture(rng))
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}") from error

    found = tried("mixed work", cases(150), case)
    assert found["accepted"] > found["refused"] / 2
