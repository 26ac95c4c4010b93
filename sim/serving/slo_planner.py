"""As many replicas as meet TTFT and TPOT goals: Dynamo's planner for servers that prefill and decode.

Those of servers that do only one of the two are in slo_sides.py.

    every `every` s   at least  ceil(requests/s / what one replica serves within both goals)
    every `look` s    one more  if on all replicas the next TTFT, or the TPOT, is above its goal
                      one less  if the others could take its share: queues take less than `down` x what a
                                prefill leaves of TTFT's goal, TPOT is below `down` x its, and there is room

Nothing changes while a replica starts, and `at least` stays if no request finished: then Dynamo's mean
lengths are 0, and it has no rate per replica. Source: Dynamo (github.com/ai-dynamo/dynamo,
docs/design-docs/planner-design.md and components/src/dynamo/planner/core: throughput_scaling.py,
load_scaling.py, perf_model/agg.py), mode `agg`, target `sla`, throughput and load scaling both on.

Departures: step times come from the run's clock, whereas Dynamo regresses them on profiles and observed
steps. The next interval equals the last one (its `constant` predictor). A replica is judged by its state at
the look, not by its average; decodes are accompanied by as many prompt tokens as balance them (prompt /
answer per sequence), not by the observed mean. Prefix hits shorten nothing. With unlike pools the first
replica that is on says what one can serve.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from kvsim.sim.errors import KvsimError
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.routers.base import Seen
from kvsim.sim.serving.scale_policy import ScalePolicy
from kvsim.sim.workload import PS_PER_S

DEFAULTS = {"ttft": 0.5, "tpot": 0.05, "least": 1.0, "every": 180.0, "look": 5.0, "down": 0.8}
"""Dynamo's defaults."""


@dataclass
class SloPlanner(ScalePolicy):
    """As many replicas as meet the goals.

    Attributes
    ----------
    ttft_s, tpot_s : float
        The goals, for means.
    least, most : int
        Fewest and most replicas.
    every_s : float
        Seconds between two looks.
    plan_looks : int
        Looks from one plan of the minimum to the next.
    down : float
        Share of the goals' slack that may be used after one replica goes.
    log : RequestLog
        Where finished requests are found.
    """

    ttft_s: float
    tpot_s: float
    least: int
    most: int
    every_s: float
    plan_looks: int
    down: float
    log: RequestLog | None
    _floor: int = 1  # the minimum by the last plan
    _looks: int = 0
    _planned_ps: int = 0
    _mean: tuple[float, float] | None = None  # tokens of a prompt and of an answer; None: none has finished

    @property
    def first(self) -> int:
        """Replicas at the start."""
        return self.least

    def target(self, now_s: float, loads: Sequence[Seen], alive: int) -> int:
        """How many replicas there should be from now on."""
        self._looks += 1
        plans = self._looks % self.plan_looks == 0
        if plans or self._mean is None:
            self._observe(round(now_s * PS_PER_S), loads, plans)
        if self._mean is None or not loads or len(loads) != alive:
            return alive
        return min(max(self._react(loads), self._floor, self.least), self.most)

    def _observe(self, now_ps: int, loads: Sequence[Seen], plans: bool) -> None:
        """Mean lengths of requests finished since the last plan; if `plans`, also the minimum."""
        assert self.log is not None
        rows = self.log.finished_between(self._planned_ps, now_ps)
        if len(rows):
            work, answers = self.log.workload, self.log.output_tokens
            self._mean = float(work.prompt_tokens[rows].mean()), float(answers[rows].mean())
            if plans and loads:
                self._floor = self._needed(len(rows) / (self.every_s * self.plan_looks), loads[0])
        if plans:
            self._planned_ps = now_ps

    def _needed(self, per_s: float, load: Seen) -> int:
        """Replicas that serve so many requests per second within the goals."""
        return ceil(per_s / self._served_per_s(load))

    # -- what a replica can do ----------------------------------------------------------------

    def _served_per_s(self, load: Seen) -> float:
        """Requests per second that a replica serves within both goals; if none, those of a batch of one."""
        assert self._mean is not None
        prompt, answer = self._mean
        context, budget = prompt + answer / 2, load.max_num_batched_tokens
        most = min(load.capacity_tokens / context, load.max_num_seqs, answer * budget / (prompt + answer))
        found = 0.0
        for batch in range(1, max(1, int(most)) + 1):
            beside = min(batch * prompt / answer, budget)
            step_s = self._step_s(load, beside, batch * context)
            late = step_s > self.tpot_s or self._next_ttft_s(load, beside, batch * context) > self.ttft_s
            if late and batch > 1:
                break
            found = batch / (answer * step_s)
            if late:
                break
        return found

    def _step_s(self, load: Seen, prompts: float, contexts: float) -> float:
        """Time of a step with `prompts` tokens of mean prompts, and decodes with `contexts` tokens in all."""
        assert self._mean is not None
        prompt, answer = self._mean
        tokens = ceil(prompts)
        sequences = ceil(contexts / (prompt + answer / 2))
        return load.step_s(ceil(tokens / prompt), tokens, sequences, ceil(contexts))

    def _next_ttft_s(self, load: Seen, queued: float, contexts: float) -> float:
        """TTFT of a mean prompt queued after `queued` tokens of others."""
        assert self._mean is not None
        whole, rest = divmod(ceil(queued + self._mean[0]), load.max_num_batched_tokens)
        found = whole * self._step_s(load, load.max_num_batched_tokens, contexts) if whole else 0.0
        return found + (self._step_s(load, rest, contexts) if rest else 0.0)

    def _next_tpot_s(self, load: Seen, contexts: float) -> float:
        """TPOT with one more mean sequence."""
        assert self._mean is not None
        prompt, answer = self._mean
        contexts += prompt + answer / 2
        beside = contexts / (prompt + answer / 2) * prompt / answer
        return self._step_s(load, min(beside, load.max_num_batched_tokens), contexts)

    # -- a look -------------------------------------------------------------------------------

    def _react(self, loads: Sequence[Seen]) -> int:
        """One replica more, the same number, or one less."""
        count = len(loads)
        if self._late(loads):
            return count + 1
        spare = count > 1 and all(self._takes(load, count / (count - 1)) for load in loads)
        return count - 1 if spare else count

    def _late(self, loads: Sequence[Seen]) -> bool:
        """Whether one of the goals is missed on all replicas."""
        first_late = all(
            self._next_ttft_s(load, load.waiting_tokens, load.decode_tokens) > self.ttft_s for load in loads
        )
        return first_late or all(self._next_tpot_s(load, load.decode_tokens) > self.tpot_s for load in loads)

    def _takes(self, load: Seen, times: float) -> bool:
        """Whether a replica can take `times` times its load."""
        queued, contexts = load.waiting_tokens * times, load.decode_tokens * times
        alone_s = self._next_ttft_s(load, 0, contexts)
        queue_s = self._next_ttft_s(load, queued, contexts) - alone_s
        together = queued + contexts
        return (
            together < load.capacity_tokens
            and queue_s < (self.ttft_s - alone_s) * self.down
            and self._next_tpot_s(load, together) < self.tpot_s * self.down
        )


def planner_of(
    given: dict[str, float], most: int, log: RequestLog | None, kind: type[SloPlanner] = SloPlanner
) -> SloPlanner:
    """A planner with these settings; KvsimError for mismatched intervals."""
    ttft_s, tpot_s, least, every_s, look_s, down = (DEFAULTS | given).values()
    plan_looks, rest_ps = divmod(round(every_s * PS_PER_S), round(look_s * PS_PER_S))
    if rest_ps or not plan_looks:
        raise KvsimError(f"scale: every must be a whole multiple of look, got {every_s:g} and {look_s:g}")
    return kind(ttft_s, tpot_s, int(least), most, look_s, plan_looks, down, log)
