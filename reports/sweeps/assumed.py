"""The assumptions of an answer: the traffic, and the server's seats, budget and caches.

    assumed(simulation)    -> {"trace": "sharegpt", "max_num_seqs": 256, ...}, in a row of a search
    assumed_words(rows)    -> `Assumed: sharegpt, prompts of 220 and answers of 190 tokens on average, ...`

A setting that differs between systems is listed with its values, or their range.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.reports.palette import count, figures, number
from kvsim.reports.sweeps.table import Row
from kvsim.sim.run import Simulation
from kvsim.sim.workload import Clients

MOST_TOLD = 3
"""At most this many values of a setting are listed."""
OWN_ARRIVALS = "the trace's own arrivals"
COMPUTED = ("mean_prompt_tokens", "mean_output_tokens", "kv_tokens")
"""Derived values, for which a range suffices."""


def assumed(simulation: Simulation) -> dict[str, Any]:
    """The resolved settings that an answer depends on, named as in the table."""
    server, work, traffic = simulation.deployment, simulation.engine.workload, simulation.traffic
    engine = server.engine
    return {
        "trace": work.name,
        "mean_prompt_tokens": float(work.prompt_tokens.mean()),
        "mean_output_tokens": float(work.output_tokens.mean()),
        "arrivals": _arrivals(traffic, closed=isinstance(work.waits, Clients)),
        "scheduler": server.scheduler_name,
        "max_num_seqs": engine.max_num_seqs,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "enable_prefix_caching": engine.enable_prefix_caching,
        "kv_cache_dtype": server.kv_cache_dtype,
        "gpu_memory_utilization": server.gpu_memory_utilization,
        "kv_tokens": simulation.capacity.tokens,
    }


def _arrivals(traffic: Mapping[str, object], *, closed: bool) -> str:
    """`Poisson arrivals`, `arrivals gamma of burstiness 0.5`, `arrivals trace`, `a closed loop`."""
    if closed:
        return "a closed loop"
    process, burstiness = str(traffic["arrivals"]), number(traffic["burstiness"])
    if process in ("gamma", "poisson") and burstiness == 1:
        return "Poisson arrivals"
    return OWN_ARRIVALS if burstiness is None else f"{process} arrivals, burstiness {burstiness:g}"


def assumed_words(rows: Sequence[Row]) -> str:
    """The assumptions of all systems that finished, in a sentence; "" if none did."""
    ended = [row for row in rows if row.get("max_num_seqs") is not None]
    if not ended:
        return ""
    told = {name: _values(ended, name) for name in ended[0]}
    caching = {"True": "prefix cache on", "False": "no prefix cache"}
    cache = " or ".join(caching.get(each, each) for each in told["enable_prefix_caching"].split(" or "))
    return (
        f"Assumed: {told['trace']}, prompts of {told['mean_prompt_tokens']} and answers of "
        f"{told['mean_output_tokens']} tokens on average, {told['arrivals']}; {told['scheduler']}, "
        f"{told['max_num_seqs']} seats, {told['max_num_batched_tokens']} tokens per step, {cache}, "
        f"KV cache {told['kv_cache_dtype']} of {told['kv_tokens']} tokens, "
        f"{told['gpu_memory_utilization']} of the memory"
    )


def _values(rows: Sequence[Row], name: str) -> str:
    """The values of a setting in these rows: `256`, `128 or 256`, `1,000 to 90,000`."""
    values = list(dict.fromkeys(row.get(name) for row in rows))
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        return " or ".join(map(str, values))
    said = list(dict.fromkeys(_said(value) for value in sorted(numbers)))
    if len(said) == 1 or (len(said) <= MOST_TOLD and name not in COMPUTED):
        return " or ".join(said)
    return f"{said[0]} to {said[-1]}"


def _said(value: float) -> str:
    """`2,048`, `0.9`, `220`."""
    return (
        count(value)
        if isinstance(value, int) or value > 10
        else figures(value)
        if value > 1
        else f"{value:g}"
    )
