"""Explains the difference between simulated and measured mean E2E.

    E2E, simulated - measured  =  steps    (TPOT, simulated - measured) x (output tokens - 1)
                                + start    difference for the requests that met the shortest queue
                                + queue    the rest of TTFT

A tool does not see the queue. So `start` (prefill and front end) is taken from the tenth of the requests with
the shortest TTFT for their prompts; any further TTFT difference came with the load. The three sum exactly.
Memory has no term of its own: it makes requests queue or recompute, and is reported beside them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvsim.sim.bench.measured import Floats, MeasuredRun
from kvsim.sim.bench.replay import Simulated, pairs

LENT = ("token", "reserved", "internal")
"""Kinds of slots that make up the blocks of living requests."""
LEAST = 0.1
"""Share of the requests from which TTFT without a queue is taken."""


@dataclass(frozen=True)
class Term:
    """A part of the difference, in seconds of mean E2E, and in words."""

    name: str
    seconds: float | None
    says: str


def terms(run: MeasuredRun, found: Simulated) -> list[Term]:
    """The parts of the difference, and what the simulated memory did."""
    return [*_of_requests(run, found), *_of_numbers(run, found), _memory(found)]


def _of_requests(run: MeasuredRun, found: Simulated) -> list[Term]:
    both = pairs(run, found)
    if not both:
        return []
    assert run.requests is not None
    known = ~np.isnan(both["E2E"][0]) & ~np.isnan(both["TTFT"][0])
    if not known.any():
        return []
    ttft, e2e = (tuple(column[known] for column in both[what]) for what in ("TTFT", "E2E"))
    late = ttft[1] - ttft[0]
    start = _at_least(late, ttft[0], ttft[1])
    steps = float(np.mean((e2e[1] - ttft[1]) - (e2e[0] - ttft[0])))
    queue = float(late.mean()) - start
    tpots = [float(np.nanmean(column)) for column in both["TPOT"]] if _any(both["TPOT"]) else [0.0, 0.0]
    return [
        _steps(steps, *tpots),
        Term("start", start, _start_words(start)),
        Term("queue", queue, _queue_words(queue, found)),
    ]


def _of_numbers(run: MeasuredRun, found: Simulated) -> list[Term]:
    """The same for means, without a term for the queue."""
    measured = run.numbers()
    keys = [(what, "mean") for what in ("TTFT", "TPOT")]
    if run.requests is not None or not all(key in measured and key in found.numbers for key in keys):
        return []
    tokens = float(found.requests.output_tokens.mean()) - 1
    tpots = measured[keys[1]], found.numbers[keys[1]]
    late = found.numbers[keys[0]] - measured[keys[0]]
    words = "TTFT: queue, prefill and front end; telling them apart needs a result with every request"
    return [_steps(tokens * (tpots[1] - tpots[0]), *tpots), Term("start and queue", late, words)]


def _steps(seconds: float, measured: float, simulated: float) -> Term:
    if not measured:
        return Term("steps", seconds, "no answer has a second token")
    off = 100 * (simulated / measured - 1)
    how = "too short" if off < 0 else "too long"
    return Term(
        "steps",
        seconds,
        f"decoding steps are {abs(off):.1f} % {how}: TPOT {1e3 * simulated:.2f} ms, "
        f"measured {1e3 * measured:.2f} ms",
    )


def _at_least(late: Floats, measured: Floats, simulated: Floats) -> float:
    """Mean of the shortest TTFTs, simulated minus measured."""
    kept = max(round(LEAST * len(late)), 1)
    return float(np.mean(np.sort(simulated)[:kept]) - np.mean(np.sort(measured)[:kept]))


def _start_words(seconds: float) -> str:
    how = "sooner" if seconds < 0 else "later"
    return f"requests that wait least begin {1e3 * abs(seconds):.1f} ms {how}: prefill and front end"


def _queue_words(seconds: float, found: Simulated) -> str:
    waited = float(np.nanmean(found.column("queueing_s")))
    how = "less" if seconds < 0 else "more"
    return (
        f"TTFT beyond that, {1e3 * abs(seconds):,.1f} ms {how}; "
        f"simulated requests queue {1e3 * waited:,.1f} ms"
    )


def _memory(found: Simulated) -> Term:
    summary: Mapping[str, object] = found.summary
    load, memory, engine = (summary[name] for name in ("load", "memory", "engine"))
    assert isinstance(load, dict) and isinstance(memory, dict) and isinstance(engine, dict)
    held, preempted = load["held_back_share"], engine["preemptions_recompute"] + engine["preemptions_swap"]
    share, seats = 100 * (held["kv_memory"] or 0), 100 * (held["max_num_seqs"] or 0)
    peak = 100 * memory["peak_used_tokens"] / memory["capacity_tokens"]
    allocated = sum(memory["average"][kind] for kind in LENT)
    words = (
        f"the KV cache of {memory['capacity_tokens']:,} tokens was at most {peak:.0f} % full, "
        f"{allocated:.0f} % allocated on average, as vLLM counts its usage; it blocked the queue "
        f"{share:.0f} % of the time, seats {seats:.0f} %; {preempted:,} preemptions"
    )
    return Term("memory", None, words)


def _any(columns: tuple[Floats, Floats]) -> bool:
    return all(not np.isnan(column).all() for column in columns)
