"""What one GPU's memory is needed for before the first token is cached, line by line.

    |<------------------------------ GPU memory ------------------------------>|
    |<--------------- x gpu_memory_utilization --------------->|    not ours    |
    | weights | activations | CUDA graphs | runtime | KV cache |                |

vLLM measures activations, graphs and runtime when it starts; here they follow from formulas that a line
states, and a log of a start says how far off they are (`--log`).
"""

from dataclasses import dataclass

from kvsim.sim.models.spec import GpuSpec, ModelSpec
from kvsim.sim.scenario.vllm_defaults import VllmDefaults

GIB = 2**30
RUNTIME_BYTES = 3 * GIB // 10
GRAPH_BYTES = GIB // 2


@dataclass(frozen=True)
class MemoryLine:
    """A part of the GPU's memory: its bytes, the formula, and where that is from."""

    name: str
    bytes: int
    formula: str
    source: str


def budget(
    model: ModelSpec, gpu: GpuSpec, tp: int, engine: VllmDefaults, *, eager: bool = False, stages: int = 1
) -> tuple[MemoryLine, ...]:
    """The lines of one GPU's memory; the cache gets what is left, which may be less than nothing."""
    usable = int(gpu.memory_bytes * engine.gpu_memory_utilization)
    tokens, seats = engine.max_num_batched_tokens, engine.max_num_seqs
    width = max(2, model.dtype_bytes)
    activations = int(
        width * tokens * (4 * model.hidden_size + 3 * model.intermediate_size / tp)
        + 10 * seats * model.vocab_size
    )
    lines = [
        MemoryLine(
            "weights", -(-model.weight_bytes // (tp * stages)), _weights(model, tp, stages), model.source
        ),
        MemoryLine(
            "activations",
            activations,
            f"{width} x {tokens:,} tokens x (4 x {model.hidden_size:,} + 3 x {model.intermediate_size:,} / "
            f"{tp}) + 10 x {seats:,} seats x {model.vocab_size:,}",
            "the peak of vLLM's profile run: residual, norm, attention, MLP; logits of every seat",
        ),
    ]
    if not eager:
        about = "in the budget" if engine.release != "0.11.0" else "beside the budget, not in it"
        lines.append(
            MemoryLine(
                "CUDA graphs",
                GRAPH_BYTES if engine.release != "0.11.0" else 0,
                f"0.5 GiB, {about}",
                f"assumed; vLLM {engine.release} captures and measures them",
            )
        )
    lines.append(MemoryLine("runtime", RUNTIME_BYTES, "0.3 GiB", "assumed: CUDA context, libraries, NCCL"))
    left = usable - sum(line.bytes for line in lines)
    lines.append(
        MemoryLine(
            "KV cache",
            left,
            f"{gpu.memory_bytes / GIB:g} GiB x {engine.gpu_memory_utilization:g} less the lines above",
            gpu.source,
        )
    )
    return (*lines, MemoryLine("not used", gpu.memory_bytes - usable, "the rest", "gpu_memory_utilization"))


def _weights(model: ModelSpec, tp: int, stages: int) -> str:
    share = f"{tp} / {stages} stages" if stages > 1 else f"{tp}"
    if model.weight_bits is None:
        return f"{model.parameters:,} x {model.dtype_bytes} bytes / {share}"
    rest = model.parameters - model.quantized_parameters
    return (
        f"({model.quantized_parameters:,} x {model.weight_bits:.4g} bits + {rest:,} x {model.dtype_bytes} "
        f"bytes) / {share}"
    )
