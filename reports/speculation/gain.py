"""The gain of speculation in decode steps, by the number of tokens that each verification yields.

    speed-up = tokens of a verification x time of a step without drafts / time of a step with them
    crossover: the tokens that a verification must yield to break even; it rises with the batch

All sequences of a batch decode with the same context. Effects of queues, prompts and memory need a run.
"""

from dataclasses import dataclass, replace

import numpy as np

from kvsim.sim.build import resolve
from kvsim.sim.cost.named import cost_of
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.deployment.draft import draft_of, speculation_of, without_speculation
from kvsim.sim.deployment.memory import kv_capacity
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.scenario import Scenario

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True)
class Gain:
    """Steps of one model with drafts and without.

    Attributes
    ----------
    model, gpu, draft, clock : str
    most : int
        K, the drafts per verification.
    length : float or None
        Stated tokens per verification.
    context : int
        Context length in tokens, the same for all sequences.
    batches : tuple of int
        Batch sizes in sequences.
    plain_s, drafted_s : tuple of float
        Step time in seconds for each batch size, without and with drafts.
    fits : tuple of int
        The most sequences of that context whose KV cache fits, without and with a draft model.
    """

    model: str
    gpu: str
    draft: str
    clock: str
    most: int
    length: float | None
    context: int
    batches: tuple[int, ...]
    plain_s: tuple[float, ...]
    drafted_s: tuple[float, ...]
    fits: tuple[int, int]

    @property
    def crossover(self) -> tuple[float, ...]:
        """Tokens per verification needed to break even, for each batch size."""
        return tuple(with_s / plain_s for with_s, plain_s in zip(self.drafted_s, self.plain_s, strict=True))

    def speed_up(self, length: float) -> tuple[float, ...]:
        """The factor on tokens per second, for each batch size."""
        return tuple(length / least for least in self.crossover)

    def as_json(self) -> dict[str, object]:
        """The numbers, in JSON's types."""
        speed_up = None if self.length is None else list(self.speed_up(self.length))
        return {**vars(self), "crossover": list(self.crossover), "speed_up": speed_up}


def gain_of(server: Scenario, context: int) -> Gain:
    """The gain of a server that speculates.

    Raises
    ------
    KvsimError
        The server does not speculate, or the context is not a whole number of at least 1.
    """
    if context < 1:
        raise KvsimError(f"context must be at least 1, got {context}")
    found = resolve(server.deployed())
    where, speculation = found.deployment, speculation_of(found.deployment)
    if speculation is None:
        raise KvsimError("speculative_config must be there: what would be turned on, got none")
    without = replace(where, engine=replace(where.engine, options=without_speculation(where.options)))
    costs = [cost_of(found.cost, each) for each in (without, where)]
    drafts, draft = speculation.num_speculative_tokens, draft_of(where)
    plain_s, drafted_s = [], []
    for seqs in BATCHES:
        plain = StepShape(decode_seqs=seqs, context_tokens=seqs * (context + 1))
        drafted = plain._replace(draft_tokens=seqs * drafts, draft_passes=drafts)
        plain_s.append(costs[0].step_ps(plain) / 1e12)
        drafted_s.append(costs[1].step_ps(drafted) / 1e12)
    told = speculation.synthetic_acceptance_length or speculation.synthetic_acceptance_rates
    length = 1 + float(np.cumprod(speculation.rates).sum()) if told or speculation.acceptance else None
    return Gain(
        where.model.name,
        where.gpu.name if where.gpus == 1 else f"{where.gpus} x {where.gpu.name}",
        speculation.method if draft is None else draft.model.name,
        where.cost,
        drafts,
        length,
        context,
        BATCHES,
        tuple(plain_s),
        tuple(drafted_s),
        (kv_capacity(without).tokens // context, kv_capacity(where).tokens // context),
    )


def verdict(gain: Gain) -> str:
    """Whether to enable speculation, in a sentence."""
    if gain.length is None:
        alone, large = gain.crossover[0], gain.crossover[-1]
        return (
            f"{gain.model}: a verification must yield {alone:.2f} tokens in a batch of one, "
            f"{large:.2f} in one of {gain.batches[-1]}"
        )
    speed_up = gain.speed_up(gain.length)
    lost = [batch for batch, factor in zip(gain.batches, speed_up, strict=True) if factor < 1]
    until = f"a loss from a batch of {lost[0]} on" if lost else f"still {speed_up[-1]:.2f} x in one of 512"
    return f"{gain.model}: {speed_up[0]:.2f} x in a batch of one, {until}"
