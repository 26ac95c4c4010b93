"""Time by stage of requests that are prefilled on one server and decoded on another.

    arrival -> prompt computed -> read begins -> read ends -> first token -> last token
       prefill              decode           link       decode ...

Where prompts are pushed (sim/serving/pushing.py), decode also comes first: until it has room for the prompt.

The bottleneck of a fleet is the stage in which requests that miss a limit spend the most time: prefill (its
queue and the prompt), the link (its queue and the copy), or decode (room for the prompt, the proxy, and all
steps).
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from kvsim.sim.record.slo import Limit

Numbers = Mapping[str, npt.NDArray[np.generic]]
SIDES = ("prefill", "link", "decode")
_ROOM = ("reserved_s", "decode")
_TO_FIRST = (("prompt_computed_s", "prefill"), ("read_begin_s", "decode"), ("read_end_s", "link"))
_REACH = {"ttft_s": "first_token_s", "e2e_s": "finish_s", "normalized_s_per_token": "finish_s"}
"""Latencies that span several sides -> the time at which they end."""
_OF_ONE = {"queueing_s": "prefill", "tpot_s": "decode"}


def shares(table: Numbers, limit: Limit) -> dict[str, float]:
    """For each side, its share of the time of requests that miss a limit; empty without disaggregation.

    Parameters
    ----------
    table : mapping
        The table of requests, or some of its rows.
    """
    if "prompt_computed_s" not in table:
        return {}
    spent, room = dict.fromkeys(SIDES, 0.0), [_ROOM] if _ROOM[0] in table else []
    if limit.column == "queueing_s" and room:
        stages = [*room, ("first_scheduled_s", "prefill")]
    elif limit.column in _OF_ONE:
        return spent | {_OF_ONE[limit.column]: 1.0}
    else:
        stages = [*room, *_TO_FIRST, (_REACH[limit.column], "decode")]
    late = np.asarray(table[limit.column], dtype=np.float64) > limit.limit_s
    before = np.asarray(table["arrival_s"], dtype=np.float64)[late]
    for name, side in stages:
        until = np.asarray(table[name], dtype=np.float64)[late]
        until = np.where(np.isnan(until), before, until)  # computed on the decode server
        until = np.maximum(until, before)  # pieces are sent before the rest is computed
        spent[side] += float((until - before).sum())
        before = until
    whole = sum(spent.values())
    return {side: each / whole for side, each in spent.items()} if whole else {}
