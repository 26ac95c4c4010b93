"""Andes: requests that would keep a reader waiting go first; those ahead of their reader give way.

    tokens read by now     ------------>|         a reader begins at the goal for the first token and reads
    A has   ==========================  |         at a steady speed (`slo_tpot_s`, else `--reading-speed`)
    B has   =====                       |         gain of serving: tokens that a reader would miss at the
                                                  end of the interval, per token of context it holds

The order is checked once per interval. A waiting request displaces running ones with a smaller gain; one that
was displaced `--andes-preemptions` times is not displaced again.

Source: Liu et al., Andes (arXiv 2404.16283), section 4: a request's priority is the gain in quality of
experience from serving it over the horizon, divided by its context; preemptions are capped. There quality is
an area between delivered and expected tokens; here it is the number missing at the end of the horizon.
"""

from dataclasses import dataclass

import numpy as np

from kvsim.allocators.option import option
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies.base import NEVER_PS, Policy
from kvsim.sim.policies.columns import Columns, Floats, Ints
from kvsim.sim.serving.facts import PS_PER_S
from kvsim.sim.serving.queues import Queue
from kvsim.sim.serving.request import Request


@dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How people read, and how often to decide."""

    reading_speed: float = option(
        "Tokens that a reader reads per second, if the trace names no goal.",
        default=4.8,
        value="X",
        above=0,
        most=1e6,
    )
    reading_start: float = option(
        "Seconds after which a reader expects the first token, if the trace names no goal.",
        default=1.0,
        value="S",
        above=0,
    )
    andes_interval: float = option(
        "Seconds between two decisions on who gains.",
        default=0.5,
        value="S",
        above=0,
    )
    andes_preemptions: int = option(
        "How often a request may be displaced.",
        default=1,
        value="N",
        least=0,
    )


class Andes(Policy):
    """Orders requests by gain in quality of experience."""

    family = "deadlines"
    why = "their readers would have waited"
    displaces_as = "its reader would have waited"
    idea = "requests that would keep their reader waiting, by gain per token held; preemptions are capped"
    needs = "slo_ttft_s and slo_tpot_s, or a reading speed"
    source = "arXiv 2404.16283, section 4"
    declares = ReadingOptions
    preempts = True

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        super().__init__(config, max_model_len)
        own = self.own(ReadingOptions)
        self._token_ps = max(1, round(PS_PER_S / own.reading_speed))
        self._start_ps = round(own.reading_start * PS_PER_S)
        self._interval_ps = max(1, round(own.andes_interval * PS_PER_S))
        self._cap = own.andes_preemptions
        self._queue = Columns(self, width=5)
        self._looked = -1  # the interval in which a request was displaced, or could have been

    def queue(self) -> Queue:
        return self._queue

    def key(self, request: Request, now_ps: int) -> tuple[float, int]:
        start_ps, pace_ps, longest, has, prompt = self.row(request)
        end_ps = self.next_ps(now_ps)
        read = min((end_ps - start_ps) // pace_ps + 1, longest) if end_ps >= start_ps else 0
        return -max(read - has, 0) / (prompt + has), -read

    def keys(self, table: Ints, now_ps: int) -> tuple[Floats, Ints]:
        start_ps, pace_ps, longest, has, prompt = table
        end_ps = self.next_ps(now_ps)
        read = np.where(end_ps >= start_ps, np.minimum((end_ps - start_ps) // pace_ps + 1, longest), 0)
        return -np.maximum(read - has, 0) / (prompt + has), -read

    def row(self, request: Request) -> tuple[int, ...]:
        has = self.generated(request)
        facts = request.facts
        start_ps = request.arrival_ps + (self._start_ps if facts.slo_ttft_ps is None else facts.slo_ttft_ps)
        pace_ps = facts.slo_tpot_ps or self._token_ps
        return (
            min(start_ps, NEVER_PS),
            min(pace_ps, NEVER_PS),
            request.output_tokens,
            has,
            request.prompt_tokens,
        )

    def next_ps(self, now_ps: int) -> int:
        """When the interval ends."""
        return min((now_ps // self._interval_ps + 1) * self._interval_ps, NEVER_PS)

    def alike_until_ps(self) -> int:
        """The end of the interval."""
        return self.next_ps(self.server.now_ps)

    def displaceable(self, request: Request) -> bool:
        return request.preemptions < self._cap

    def decide(self, seats: int, budget: int) -> int:
        """Displace in the first step of an interval only."""
        interval = self.server.now_ps // self._interval_ps
        if interval == self._looked:
            self._fitted = None
            return 0
        self._looked = interval
        return super().decide(seats, budget)
