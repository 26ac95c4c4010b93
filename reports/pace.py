"""Run slowly enough to watch: `--live --pace 10x` takes ten simulated seconds per second.

The run waits before each step until it is due; the results are the same.
"""

import time
from math import isfinite

from kvsim.sim.errors import KvsimError
from kvsim.sim.serving.engine import Engine
from kvsim.sim.workload import PS_PER_S

STEPS_AT_ONCE_S = 3
"""Steps taken without waiting, per simulated second per second: about a tenth of a second on the clock."""


def pace_of(text: str, *, live: bool) -> float:
    """Simulated seconds per second, from `10x` or `0.5`; KvsimError if it is invalid, or without `live`."""
    number = text.strip().lower().removesuffix("x")
    try:
        pace = float(number)
    except ValueError:
        pace = 0.0
    if not isfinite(pace) or pace <= 0:
        raise KvsimError(f"pace must be a number above 0, as in 10x, got {text!r}")
    if not live:
        raise KvsimError(f"pace must be left out without --live, got {text!r}")
    return pace


def keep_pace(engine: Engine, pace: float) -> None:
    """Make an engine that has not started run at this pace, relative to its first step."""
    start_s: list[float] = []

    def wait(now_ps: int) -> None:
        due_s = now_ps / PS_PER_S / pace
        if not start_s:
            start_s.append(time.monotonic() - due_s)
        early_s = start_s[0] + due_s - time.monotonic()
        if early_s > 0:
            time.sleep(early_s)

    engine.wait_before_steps(wait, max(1, round(STEPS_AT_ONCE_S * pace)))
