"""Who arrives, when, and how long: a trace's lengths and an arrival process become a Workload.

    trace --loader--> Lengths --take--> n rows --+
    seed ---spawn---> two streams                +--> Workload
    request_rate, burstiness -----> n arrivals --+

Lengths and arrivals draw from streams of their own, so the lengths do not depend on the rate, and
twice the rate gives the same arrivals at half the time. Adding a trace is one file and one line here.
"""

from collections.abc import Callable
from importlib import import_module

import numpy as np

from sim.errors import KvsimError, unknown
from sim.workload import Workload
from workloads.arrivals import arrival_times_ps
from workloads.lengths import Lengths, take

TRACES: dict[str, str] = {
    "sharegpt": "workloads.sharegpt:load_lengths",
}
"""Name of a trace -> `module:function` that returns its Lengths; imported only when asked for."""


def trace_names() -> list[str]:
    """The built-in traces, in the order of the table."""
    return list(TRACES)


def build(
    trace: str, *, num_prompts: int | None, request_rate: float, burstiness: float, seed: int
) -> Workload:
    """The workload of one run; the same arguments give the same bytes.

    Parameters
    ----------
    trace : str
        One of `trace_names()`.
    num_prompts : int or None
        How many requests; None takes the whole trace, more than it has draws with replacement.
    request_rate : float
        Requests per second; infinity lets all of them arrive at 0.
    burstiness : float
        1 is a Poisson process, less is burstier, more is more regular.
    seed : int
        At least 0.

    Raises
    ------
    KvsimError
        An unknown trace, or a value out of its range.
    """
    if trace not in TRACES:
        raise unknown("trace", trace, trace_names())
    if not isinstance(seed, int) or seed < 0:
        raise KvsimError(f"seed must be a whole number of at least 0, got {seed}")
    lengths_seed, arrivals_seed = np.random.SeedSequence(seed).spawn(2)
    module, function = TRACES[trace].split(":")
    load: Callable[[], Lengths] = getattr(import_module(module), function)
    lengths = take(load(), num_prompts, np.random.default_rng(lengths_seed))
    arrival_ps = arrival_times_ps(
        len(lengths), request_rate, burstiness, np.random.default_rng(arrivals_seed)
    )
    return Workload(lengths.name, arrival_ps, lengths.prompt_tokens, lengths.output_tokens, lengths.notes)
