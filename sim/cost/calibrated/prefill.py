"""Prefill attention of a calibrated profile: its duration for the chunks of prompts of a step.

The form, and a ratio by the tokens of all chunks and by the mean tokens cached before a chunk, or, in
profiles that were measured without anything cached, by the number of chunks:

    bytes   queries and outputs, and each key and value once
    work    flops of both products, in whole tiles of queries and keys, stretched if programs leave
            multiprocessors idle (kernels/calibration/form.py has the formula)

Of vLLM's kernels, FlashAttention 3 on Hopper and TensorRT-LLM's on the B200 family support attention sinks.
Other GPUs use Triton's, whose prompts take longer by the constant `sinks` (benchmarks/elsewhere/parts.py).
"""

from collections.abc import Mapping
from math import inf
from typing import Any

from kvsim.sim.cost.calibrated.parts import Part, Priced, Surface, by_head_dim

SINKS = ("attention sinks", "", 0.0)


class PrefillPart:
    """Prefill attention in `layers` layers, on one of the GPUs that share them."""

    def __init__(
        self,
        part: Mapping[str, Any],
        *,
        layers: int,
        kv_heads: int,
        group: int,
        head_dim: int,
        element_bytes: int,
        block_size: int,
        sinks: int = 0,
    ) -> None:
        self.part = Part("prefill", part, block_size=block_size, group=group, head_dim=head_dim)
        self._by_prompts = any(axis["name"] == "sequences" for axes, _ in self.part.tables for axis in axes)
        self._ratio = Surface(self.part, "tokens", "sequences" if self._by_prompts else "prefix_tokens")
        always = self.part.outside_always
        self._least, self._most = (inf, -inf) if always else self.part.covered("tokens")
        self._shortest, self._longest = self.part.covered("prefix_tokens")
        constants = self.part.constants
        self._slower: float = constants.get("sinks", 1.0) if sinks else 1.0
        self._never = [SINKS] if self._slower != 1 else []
        self._layers, self._kv_heads = layers, kv_heads
        self._query_tile = max(by_head_dim(constants["rows"], head_dim) // group, 1)
        self._padding = (self._query_tile + by_head_dim(constants["key_tile"], head_dim)) / 2
        self._multiprocessors: int = constants["multiprocessors"]
        self._whole_waves: float = constants.get("whole_waves", 0.0)
        self._query_bytes = 4 * head_dim * kv_heads * group
        self._key_bytes = 2 * head_dim * kv_heads * element_bytes
        self._pair_flops = 4 * kv_heads * group * head_dim

    def priced(self, sequences: int, tokens: int, pairs: int) -> Priced:
        """All chunks together, in all layers; `pairs` is the number of (query, key) pairs that attend."""
        part, chunk, seen = self.part, tokens / sequences, pairs / tokens
        tiles = sequences * -(-tokens // (sequences * self._query_tile))
        padded = seen * tiles * self._query_tile + tokens * self._padding
        programs = tiles * self._kv_heads
        if programs < self._multiprocessors:
            padded *= self._multiprocessors / programs
        elif self._whole_waves:
            padded *= 1 + self._whole_waves * (-programs % self._multiprocessors) / programs
        moved = self._query_bytes * tokens + self._key_bytes * sequences * (seen + (chunk - 1) / 2)
        prefix = seen - (chunk + 1) / 2
        if prefix < 0:
            prefix = 0.0
        ratio = self._ratio.at(tokens, sequences if self._by_prompts else prefix)
        ps = self._layers * part.form_ps(moved, self._pair_flops * padded) * ratio * self._slower
        if self._least <= tokens <= self._most and self._shortest <= prefix <= self._longest:
            return Priced.of(ps, self._never)
        place = {"tokens": tokens, "prefix_tokens": prefix}
        return Priced.of(ps, [*self._never, *part.outside_always, *part.outside(place)])
