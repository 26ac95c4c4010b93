"""The measurements of a profile that one GPU of a deployment needs: parts by name, and their ranges."""

from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

from kvsim.sim.cost.calibrated.parts import Along, Part, Priced
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.models.spec import GpuSpec, ModelSpec

BLOCK_SIZE = 16
"""For allocators without blocks: the block size of the profile's main tables."""
REDUCE = "all_reduce"
BY_SIZE = ("sampling", "elementwise", "kv_write", "block_copy", "to_host", "to_gpu", REDUCE)
"""Parts that only move bytes."""


class Shard(NamedTuple):
    """The share of a model held by each of the `tp` GPUs that share every layer."""

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    ranks: int
    """attention ranks, each with its own sequences (data parallel)"""
    heads: int
    kv_heads: int
    kept: int
    """numbers per token and layer in the KV cache"""
    element_bytes: int
    """bytes of one such number"""
    block_size: int
    most_bytes_per_s: float
    """bandwidth that no kernel exceeds"""

    @classmethod
    def of(cls, deployment: Deployment) -> "Shard":
        """The shard of a deployment."""
        model, gpu, tp = deployment.served_model, deployment.served_gpu, deployment.tensor_parallel_size
        kv_heads = -(-model.kv_heads // tp)
        elsewhere = deployment.cost == "measured-elsewhere"
        has_blocks = deployment.allocator.has_blocks
        return cls(
            model, gpu, tp, deployment.data_parallel_size, model.heads // tp, kv_heads,
            kept=model.kv_latent_dim or 2 * kv_heads * model.head_dim,
            element_bytes=model.kv_dtype_bytes or model.dtype_bytes,
            block_size=deployment.engine.block_size if has_blocks else BLOCK_SIZE,
            most_bytes_per_s=gpu.bandwidth_bytes_per_s if elsewhere else inf,
        )  # fmt: skip


class Measured:
    """The parts of a profile.

    Attributes
    ----------
    product : Part
        Matrix products in 16 bits, whose form also prices anything not measured.
    reduce : Part or None
        All-reduces within a node.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        self._parts = parts
        self._limits: dict[str, Mapping[str, tuple[float, float]]] = {}
        by_size = {name: self.part(name) for name in BY_SIZE if name in parts}
        self.reduce = by_size.pop(REDUCE, None)
        self._by_size = {name: Along(part, "bytes") for name, part in by_size.items()}
        self.product = self.part("product")

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def part(self, name: str) -> Part:
        """A part; its limits are recorded, so that they can be asked for later."""
        found = Part(name, self._parts[name])
        self._limits[name] = found.limits
        return found

    def raw(self, name: str) -> Mapping[str, Any]:
        """A part as stored in the profile."""
        found: Mapping[str, Any] = self._parts[name]
        return found

    def moves(self, name: str) -> bool:
        """Whether a part was measured only along the bytes that it moves."""
        return name in self._by_size

    def by_bytes(self, name: str, moved: float) -> Priced:
        """A launch that only moves `moved` bytes."""
        return self._by_size[name].priced(moved, 0.0, moved)

    def in_precision(self, name: str, *suffixes: str) -> str:
        """The part's first name in these precisions that the profile has, else its 16-bit name."""
        return in_precision(self._parts, name, *suffixes)

    def limits(self, part: str) -> Mapping[str, tuple[float, float]]:
        """The measured range of a part: axis -> (least, most)."""
        return self._limits[part]


def in_precision(parts: Mapping[str, Any], name: str, *suffixes: str) -> str:
    """The part's first name in these precisions that `parts` has, else its 16-bit name."""
    return next((name + each for each in suffixes if name + each in parts), name)
