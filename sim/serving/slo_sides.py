"""Dynamo's planner for pools that prefill or decode: each side keeps one goal.

    prefill   TTFT   at least  ceil(requests/s x a mean prompt's time); if that is late, ceil(it / goal)
                     one more  if on all replicas the queue and a mean prompt take longer than the goal
                     one less  if the others' queues then take less than `down` x what a prompt leaves of it
    decode    TPOT   at least  ceil(requests/s / what the largest batch within the goal serves)
                     one more  if on all replicas the step with one more sequence is late; queues count, too
                     one less  if all that the others then have fits, and their steps take `down` x the goal

Source: Dynamo, components/src/dynamo/planner/core: load_scaling.py (`_prefill_load_decision`,
`_decode_load_decision`), throughput_scaling.py, perf_model/prefill.py and decode.py; mode `disagg`, target
`sla`. Departures are those of slo_planner.py. Further: a side waits while one of its replicas starts, as in
its modes `prefill` and `decode`, whereas `disagg` may take a start back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from kvsim.sim.routers.base import Seen
from kvsim.sim.serving.slo_planner import SloPlanner


@dataclass
class PrefillPlanner(SloPlanner):
    """As many prefill replicas as keep the goal of TTFT, which does not count what follows the prompt."""

    def _served_per_s(self, load: Seen) -> float:
        """Prompts per second, one after the other."""
        return 1 / self._next_ttft_s(load, 0, 0)

    def _needed(self, per_s: float, load: Seen) -> int:
        alone_s = self._next_ttft_s(load, 0, 0)
        late = ceil(alone_s / self.ttft_s) if alone_s > self.ttft_s else 1
        return max(super()._needed(per_s, load), late)

    def _late(self, loads: Sequence[Seen]) -> bool:
        return all(self._next_ttft_s(load, load.waiting_tokens, 0) > self.ttft_s for load in loads)

    def _takes(self, load: Seen, times: float) -> bool:
        alone_s = self._next_ttft_s(load, 0, 0)
        queue_s = self._next_ttft_s(load, load.waiting_tokens * times, 0) - alone_s
        return queue_s < (self.ttft_s - alone_s) * self.down


@dataclass
class DecodePlanner(SloPlanner):
    """As many decode replicas as keep the goal of TPOT."""

    def _served_per_s(self, load: Seen) -> float:
        """Requests per second of the largest batch within the goal; if none is, of a batch of one."""
        assert self._mean is not None
        prompt, answer = self._mean
        context = prompt + answer / 2
        found, beyond = 1, max(1, min(int(load.capacity_tokens / context), load.max_num_seqs)) + 1
        while beyond - found > 1:
            middle = (found + beyond) // 2
            if self._step_s(load, 0, middle * context) <= self.tpot_s:
                found = middle
            else:
                beyond = middle
        return found / (answer * self._step_s(load, 0, found * context))

    def _next_tpot_s(self, load: Seen, contexts: float) -> float:
        """Step with one more mean sequence."""
        assert self._mean is not None
        prompt, answer = self._mean
        return self._step_s(load, 0, contexts + prompt + answer / 2)

    def _late(self, loads: Sequence[Seen]) -> bool:
        return all(self._next_tpot_s(load, _contexts(load)) > self.tpot_s for load in loads)

    def _takes(self, load: Seen, times: float) -> bool:
        contexts = _contexts(load) * times
        return contexts < load.capacity_tokens and self._next_tpot_s(load, contexts) < self.tpot_s * self.down


def _contexts(load: Seen) -> int:
    """Tokens of all requests that decode, wait, or are on their way."""
    return load.decode_tokens + load.waiting_tokens + load.loading_tokens


SIDES: dict[str, type[SloPlanner]] = {"both": SloPlanner, "prefill": PrefillPlanner, "decode": DecodePlanner}
"""The planner for servers of each role."""
