"""When each prompt was computed, wherever that was: papers count the first token from there."""

import numpy as np

from kvsim.sim.record.recorder import Result
from kvsim.sim.workload import Int64Column


def computed_ps(result: Result) -> Int64Column:
    """When each request's prompt was computed; on a server that answers it, that is its first token."""
    first_ps: Int64Column = result.requests["first_token_ps"]
    if result.stages is None:
        return first_ps
    apart_ps = result.stages["prompt_computed_ps"]
    return np.where(apart_ps > 0, apart_ps, first_ps)
