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
from dataclasses import dataclass
from math import inf
from typing import Any

from kvsim.sim.cost.calibrated.parts import Part, Priced, Surface, by_head_dim

SINKS = ("attention sinks", "", 0.0)


@dataclass(frozen=True)
class Tiled:
    """What a kernel moves and computes for chunks of prompts in one layer, in whole tiles."""

    kv_heads: int
    query_tile: int
    """queries of a tile, in all query heads of its KV head"""
    padding: float
    """keys that a query computes beyond those it sees, on average"""
    multiprocessors: int
    whole_waves: float
    query_bytes: int
    """per token: its queries and outputs"""
    key_bytes: int
    """per token: its key and value"""
    pair_flops: int
    """per (query, key) pair"""

    def work(self, sequences: int, tokens: int, seen: float) -> tuple[float, float]:
        """Bytes and operations of `tokens` queries that see `seen` keys on average."""
        tiles = sequences * -(-tokens // (sequences * self.query_tile))
        padded = seen * tiles * self.query_tile + tokens * self.padding
        programs = tiles * self.kv_heads
        if programs < self.multiprocessors:
            padded *= self.multiprocessors / programs
        elif self.whole_waves:
            padded *= 1 + self.whole_waves * (-programs % self.multiprocessors) / programs
        keys = self.key_bytes * sequences * (seen + (tokens / sequences - 1) / 2)
        return self.query_bytes * tokens + keys, self.pair_flops * padded


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
        self._layers = layers
        query_tile, key_tile = (by_head_dim(constants[name], head_dim) for name in ("rows", "key_tile"))
        query_tile = max(query_tile // group, 1)
        self._tiled = Tiled(
            kv_heads=kv_heads,
            query_tile=query_tile,
            padding=(query_tile + key_tile) / 2,
            multiprocessors=constants["multiprocessors"],
            whole_waves=constants.get("whole_waves", 0.0),
            query_bytes=4 * head_dim * kv_heads * group,
            key_bytes=2 * head_dim * kv_heads * element_bytes,
            pair_flops=4 * kv_heads * group * head_dim,
        )

    def priced(self, sequences: int, tokens: int, pairs: int) -> Priced:
        """All chunks together, in all layers; `pairs` is the number of (query, key) pairs that attend."""
        part, chunk, seen = self.part, tokens / sequences, pairs / tokens
        moved, flops = self._tiled.work(sequences, tokens, seen)
        prefix = seen - (chunk + 1) / 2
        if prefix < 0:
            prefix = 0.0
        ratio = self._ratio.at(tokens, sequences if self._by_prompts else prefix)
        ps = self._layers * part.form_ps(moved, flops) * ratio * self._slower
        if self._least <= tokens <= self._most and self._shortest <= prefix <= self._longest:
            return Priced.of(ps, self._never)
        place = {"tokens": tokens, "prefix_tokens": prefix}
        return Priced.of(ps, [*self._never, *part.outside_always, *part.outside(place)])
