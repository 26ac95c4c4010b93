"""The prefix cache hits of a run, from the server's log, and a shared prefix that gives as many.

    prompt tokens of the run        48,018      from the result
    computed, by the log            11,570      context tokens of its steps, or its prompt throughput
    found in the cache              36,448      75.9 %
    in blocks of 32                  1,139      of 150 prompts: at least 8 blocks each, for all but 8 prompts
    --shared-prefix                  8x256

Neither the result nor the log tells what the prompts have in common. So the shortest prefix of whole blocks
that can give these hits is chosen, and as many different prefixes as there are prompts without a hit, since
the first prompt with a prefix misses.
"""

from dataclasses import dataclass

import numpy as np

from kvsim.sim.bench.logged import part_of
from kvsim.sim.bench.measured import Floats, MeasuredRun
from kvsim.sim.bench.turns import SharedPrefix, texts_of
from kvsim.sim.fit.running import RunningLog
from kvsim.sim.options.scenario import Scenario

OF_RATE = 1000
"""Number of requests that a logged hit rate covers."""
FEWEST = 0.05
"""Hits below this share of the prompts' tokens are ignored."""


@dataclass(frozen=True)
class Hits:
    """Tokens of a run's prompts, and how many of them were cached."""

    prompt_tokens: int
    hit_tokens: int

    @property
    def share(self) -> float:
        """Share of all tokens."""
        return self.hit_tokens / self.prompt_tokens


def hits_of(run: MeasuredRun, log: RunningLog) -> Hits | None:
    """What the log says about this run; None if it does not cover the run, or the run's time is unknown."""
    requests, part = run.requests, part_of(run, log)
    if part is None or requests is None:
        return None
    asked = int(requests.input_tokens.sum())
    cut = 0 if run.cut is None else int(run.cut.input_tokens.sum())  # computed or not
    if cut > FEWEST * asked and asked + cut - part.prompt_tokens >= FEWEST * (asked + cut):
        return None
    asked += cut
    found = Hits(asked, max(asked - round(part.prompt_tokens), 0))
    if found.share < FEWEST and not len(part.steps):
        return _by_rates(found, part.statistics, log, len(requests))
    return found


def _by_rates(counted: Hits, lines: Floats, log: RunningLog, requests: int) -> Hits:
    """By the logged hit rate, for releases whose prompt throughput also counts cached tokens.

    The rate covers the last 1,000 requests, including those of earlier runs.
    """
    rates = lines[:, 6][~np.isnan(lines[:, 6])]
    if not len(rates) or rates[-1] < FEWEST:
        return counted
    asked, earlier = counted.prompt_tokens, log.statistics[log.statistics[:, 0] < lines[0, 0]]
    before = min(float(earlier[:, 1].sum()) * log.interval_s, asked * max(OF_RATE / requests - 1, 0))
    known = earlier[:, 6][~np.isnan(earlier[:, 6])]
    at_first = float(known[-1]) if len(known) else 0.0
    hits = float(rates[-1]) * (before + asked) - at_first * before
    return Hits(asked, round(min(max(hits, 0), asked)))


def shared_prefix(run: MeasuredRun, hits: Hits, block_size: int) -> SharedPrefix | None:
    """The shortest prefix that gives these hits; None if there are too few to matter."""
    requests = run.requests
    if requests is None or hits.share < FEWEST or len(requests) < 2:
        return None
    n, blocks = len(requests), hits.hit_tokens / block_size
    each = max(-int(-blocks // (n - 1)), 1)
    return SharedPrefix(min(max(round(n - blocks / each), 1), n), each * block_size)


NONE = "none"


def prefix_of(
    run: MeasuredRun, server: Scenario, asked: str | None, lines: RunningLog | None
) -> tuple[SharedPrefix | None, tuple[str, ...]]:
    """The shared prefix of the prompts: as requested, or one that gives the log's hits; and notes on it."""
    if asked is not None:
        return None if asked == NONE else SharedPrefix.parsed(asked), ()
    if lines is None or not server.enable_prefix_caching or run.requests is None or texts_of(run.requests):
        return None, ()
    hits = hits_of(run, lines)
    if hits is None:
        rates = lines.statistics[:, 6]
        highest = float(np.nanmax(rates, initial=0.0)) if len(rates) else 0.0
        if highest < FEWEST:
            return None, ()
        said = (
            f"The log's prefix cache hit rate is up to {100 * highest:.1f} %, but which part of it "
            "belongs to this run is not known: prompts are simulated without hits; give --shared-prefix "
            "GxT, one of G texts of T tokens."
        )
        return None, (said,)
    found = shared_prefix(run, hits, server.block_size or 16)
    if found is None:
        return None, ()
    return found, (
        f"By the log {hits.hit_tokens:,} of {hits.prompt_tokens:,} prompt tokens, {100 * hits.share:.1f} %, "
        f"were found in the prefix cache: prompts begin with one of {found.groups:,} texts of "
        f"{found.tokens:,} tokens, which gives about as many (--shared-prefix {found}; none: no hits).",
    )
