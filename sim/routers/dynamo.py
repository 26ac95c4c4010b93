"""Dynamo's KV router: the replica where prefill and decode together are cheapest, in blocks.

    prefill blocks   (tokens of prompts still to compute + those of this one not cached there) / block
    decode blocks    blocks that its requests hold, those of prompts in its queue, and this request's
    cost             kv_overlap_score_weight x prefill blocks + decode blocks

The lowest cost is chosen, the first of equals; with `router_temperature` T above 0 one is drawn by
softmax(-cost / (T x (largest - smallest cost))).

Sources: Dynamo's router guide (cost, weight, temperature), lib/kv-router/src/scheduling/selector.rs (softmax
of costs scaled by their range). Dynamo counts the blocks that it sends; here the router asks the replicas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import ClassVar

import numpy as np

from kvsim.allocators.option import option
from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.request import Request


@dataclass(frozen=True, kw_only=True)
class DynamoOptions:
    """Options of dynamo, named and set as Dynamo does."""

    kv_overlap_score_weight: float = option(
        "Weight of prefill against decode: more keeps prefixes together, 0 considers only the load.",
        default=1.0,
        value="X",
        least=0,
    )
    router_temperature: float = option(
        "0: the cheapest; above: drawn at random, more evenly the larger it is.",
        default=0.0,
        value="X",
        least=0,
    )


class Dynamo(Router):
    """Chooses the lowest cost in blocks, or draws by a softmax of costs."""

    declares: ClassVar[type] = DynamoOptions

    def __init__(self, argument: str, rng: np.random.Generator, options: Mapping[str, object]) -> None:
        super().__init__(argument, rng, options)
        own = self.own(DynamoOptions)
        self._weight, self._temperature = own.kv_overlap_score_weight, own.router_temperature

    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The cheapest replica, or one drawn by the seed."""
        costs = [self.cost(request, replica) for replica in replicas]
        least, most = min(costs), max(costs)
        if not self._temperature:
            return costs.index(least)
        scale = (most - least) * self._temperature
        weights = [exp((least - cost) / scale) if scale else 1.0 for cost in costs]
        drawn = float(self.rng.random()) * sum(weights)
        for place, weight in enumerate(weights):
            drawn -= weight
            if drawn < 0:
                return place
        return len(weights) - 1

    def cost(self, request: Request, replica: Seen) -> float:
        """The cost of the request at a replica, in blocks."""
        block, prompt = replica.block_size, request.prompt_tokens
        uncached = prompt - replica.cached_tokens(request)
        prefill = (replica.prefill_tokens + uncached) / block
        decode = -(-replica.used_tokens // block) + -(-replica.waiting_tokens // block) + -(-prompt // block)
        return self._weight * prefill + decode
