"""The choice of experts in a layer: scores, from a product that is never quantized, and selecting the best.

    16 bits   the tables' product
    32 bits   (MiniMax-M2, GLM-4.5) hidden states in 32 bits, and t0 + pnorm(read, compute), at the roofline's
              share of the bandwidth and of the peak: no public table has such a product
    choice    the scores of all experts, read once

`highest` computes 32 bits on the CUDA cores, as vLLM does unless VLLM_FLOAT32_MATMUL_PRECISION says
otherwise; `high` on the tensor cores, at half the rate of 16 bits (TF32).
"""

from collections.abc import Callable

from kvsim.sim.cost.calibrated.parts import Part, Place, Priced, Product
from kvsim.sim.models.spec import GpuSpec
from kvsim.sim.workload import PS_PER_S

CHOSEN_BEFORE = ("", "_fp8", "_fp8_block", "_int4_wo")
"""Parts for experts whose tables do not include the choice. Experts in mxfp4 choose themselves; those in
nvfp4 pack their inputs in launches that stand in for the choice (the tables'
collector/vllm/collect_moe.py)."""
TF32 = 2.0
CUDA_CORES = {"b200": 32.0, "gb200": 32.0, "b300": 32.0, "l4": 4.0, "rtx": 4.0}
"""Rate of 16-bit products on tensor cores over that of 32-bit products without them, by the prefix of
the GPU's name (datasheets: B200 2,250 and 75 TFLOP/s, L40S 362 and 92, RTX PRO 6000 504 and 126)."""
OTHER_CUDA_CORES = 16.0
"""The same for A100 (312 and 19.5), H100 and H200 (989 and 67)."""

UNMEASURED: tuple[Place, ...] = (("router in 32 bits", "", 0.0),)


class Router:
    """The choice of experts for any number of tokens.

    Parameters
    ----------
    part : Part
        16-bit products.
    shape : (inputs, outputs)
        Hidden size, experts.
    bits : int
        16 or 32.
    slower : float
        Rate of a 16-bit product over that of a 32-bit one.
    launched : callable
        Takes bytes; returns the price of a launch that only moves them.
    chooses : bool
        Whether the experts' own price leaves the choice out.
    """

    def __init__(
        self, part: Part, shape: tuple[int, int], gpu: GpuSpec, *, bits: int, slower: float,
        launched: Callable[[float], Priced], chooses: bool, most_bytes_per_s: float,
    ) -> None:  # fmt: skip
        self._hidden, self._experts = shape
        self._part, self._bits, self._launched, self._chooses = part, bits, launched, chooses
        self._plain = Product(part, *shape, most_bytes_per_s)
        self._byte_ps = PS_PER_S / (gpu.bandwidth_bytes_per_s * gpu.bandwidth_efficiency)
        self._work_ps = slower * PS_PER_S / (gpu.flops_per_s * gpu.matmul_efficiency)

    def launches(self, tokens: int) -> list[Priced]:
        """The launches for `tokens` tokens."""
        found = [self._launched(4 * tokens * self._experts)] if self._chooses else []
        if self._bits == 16:
            return [*found, self._plain.priced(tokens)]
        wider = self._launched(6 * tokens * self._hidden)
        moved = 4 * (self._hidden * self._experts + tokens * (self._hidden + self._experts))
        computed = 2 * tokens * self._hidden * self._experts * self._work_ps
        scores = self._part.t0_ps + self._part.norm(moved * self._byte_ps, computed)
        return [*found, wider, Priced.of(scores, UNMEASURED)]


def slowness(precision: str, gpu: GpuSpec) -> float:
    """Time of a product in 32 bits over that in 16."""
    if precision == "high":
        return TF32
    known = [rate for name, rate in CUDA_CORES.items() if gpu.name.lower().startswith(name)]
    return known[0] if known else OTHER_CUDA_CORES
