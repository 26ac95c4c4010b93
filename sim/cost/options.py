"""Options of compiled cost models: a compiled class would lose the types of its options."""

from dataclasses import dataclass

from kvsim.allocators.option import option
from kvsim.sim.cost.host import HostOptions

SKEW = 1.2
"""Default routing skew on measured GPUs."""
_SKEW = "How unevenly tokens choose experts: the exponent of a power law."


@dataclass(frozen=True, kw_only=True)
class RooflineOptions(HostOptions):
    """Options of the roofline."""

    expert_skew: float = option(_SKEW, default=0.0, value="X", least=0, most=4)


@dataclass(frozen=True, kw_only=True)
class CalibratedOptions(HostOptions):
    """Options of measured step times."""

    expert_skew: float = option(_SKEW, default=SKEW, value="X", least=0, most=4)
    fuse_allreduce_rms: bool = option(
        "Fuse all-reduces with the norm behind them, as FlashInfer's do.",
        default=False,
        doc="FlashInfer's all-reduces, which vLLM fuses with the norm behind them "
        "(`pass_config.fuse_allreduce_rms`): every GPU sends to all others at once if that is shorter",
    )
    float32_matmul_precision: str = option(
        "How 32-bit products are computed: routers of MiniMax-M2 and GLM-4.5.",
        default="highest",
        allowed=("highest", "high"),
        doc="products in 32 bits (the routers of MiniMax-M2 and GLM-4.5): `highest` on CUDA cores, `high` as "
        "TF32 on tensor cores; vLLM's `VLLM_FLOAT32_MATMUL_PRECISION`",
    )
