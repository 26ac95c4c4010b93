"""The use of one GPU's memory before the first token is cached, line by line.

    |<------------------------------ GPU memory ------------------------------>|
    |<--------------- x gpu_memory_utilization --------------->|    not ours    |
    | weights | activations | CUDA graphs | runtime | KV cache |                |

vLLM measures activations, graphs and runtime at startup. Here they follow from formulas, which each line
states; a startup log shows their errors (`--log`).
"""

from dataclasses import dataclass

from kvsim.sim.deployment.profile_run import profiled
from kvsim.sim.deployment.vllm_defaults import VllmDefaults, rules_of
from kvsim.sim.models.draft import Draft
from kvsim.sim.models.spec import GpuSpec, ModelSpec

GIB = 2**30


@dataclass(frozen=True)
class MemoryLine:
    """One use of the GPU's memory: bytes, formula and source."""

    name: str
    bytes: int
    formula: str
    source: str


def budget(
    model: ModelSpec,
    gpu: GpuSpec,
    tp: int,
    engine: VllmDefaults,
    *,
    eager: bool = False,
    stages: int = 1,
    draft: Draft | None = None,
) -> tuple[MemoryLine, ...]:
    """The lines of one GPU's memory; the cache gets the rest, which may be negative."""
    tokens, seats = engine.max_num_batched_tokens, engine.max_num_seqs
    rules = rules_of(engine.release)
    found = profiled(
        model, gpu, rules, tp=tp, stages=stages, tokens=tokens, seats=seats, eager=eager, draft=draft
    )
    seen = gpu.memory_bytes - found.driver
    usable = int(seen * engine.gpu_memory_utilization)
    lines = [
        MemoryLine("weights", found.weights, _weights(model, tp, stages), model.source),
        MemoryLine(
            "activations",
            found.activations,
            f"{found.activations_words}, of {tokens:,} tokens and {seats:,} seats",
            f"the peak of the profile run of vLLM {engine.release}",
        ),
    ]
    if draft is not None:
        words = f"{draft.weight_bytes:,} bytes / {tp}"
        lines.insert(1, MemoryLine("draft", found.draft, words, draft.model.source))
    if found.graphs:
        lines.append(
            MemoryLine("CUDA graphs", found.graphs, f"{model.layers} layers", "assumed, as logged elsewhere")
        )
    elif not eager:
        lines.append(MemoryLine("CUDA graphs", 0, "beside the budget, not in it", f"vLLM {engine.release}"))
    lines.append(
        MemoryLine("runtime", found.runtime, "kernels, libraries, NCCL", "assumed, as logged elsewhere")
    )
    left = usable - sum(line.bytes for line in lines)
    lines.append(
        MemoryLine(
            "KV cache",
            left,
            f"{seen / GIB:.2f} GiB x {engine.gpu_memory_utilization:g} less the lines above",
            gpu.source,
        )
    )
    unused = f"{gpu.memory_bytes / GIB:.2f} GiB less {found.driver / GIB:.2f} of the driver, and the rest"
    return (*lines, MemoryLine("not used", gpu.memory_bytes - usable, unused, "gpu_memory_utilization"))


def _weights(model: ModelSpec, tp: int, stages: int) -> str:
    share = f"{tp} / {stages} stages" if stages > 1 else f"{tp}"
    if model.weight_bits is None:
        return f"{model.parameters:,} x {model.dtype_bytes} bytes / {share}"
    rest = model.parameters - model.quantized_parameters
    return (
        f"({model.quantized_parameters:,} x {model.weight_bits:.4g} bits + {rest:,} x {model.dtype_bytes} "
        f"bytes) / {share}"
    )
