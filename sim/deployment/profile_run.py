"""The memory that vLLM's profile run finds on a GPU, by release: one formula for `fit` and `run`.

    |<------------------------------- GPU memory -------------------------------->|
    | driver |<-------------- x gpu_memory_utilization -------------->|           |
    |        | weights | activations | runtime | CUDA graphs | KV cache | not used |

    draft        weights of the draft, in addition to the model's: shared by its GPUs

    driver       memory that nvidia-smi counts and torch does not see: 0.3 GiB + 0.3 % of the memory
    activations  2 x tokens x hidden (the last layer's output and a copy) in 16 bit, the experts' workspaces
                 that stay, and the largest of
                   sampler  seats x vocabulary x 38 bytes: logits in 16 and 32 bit, and a sort of them:
                            values, indices, reversed indices, the sort's own copies. No sort from 0.17 on:
                            14; no sampler in 0.7: 6
                   MLP      tokens x (2 x hidden + 3 x intermediate / tp): gate and up, their product
                   experts  their workspaces, if these do not stay
    experts      2 x tokens x experts per token x hidden: the inputs and outputs of all of them. They stay
                 from 0.14 on, and before that with weights in fp8
    runtime      kernels and libraries 0.15 GiB, in 0.7 0.5 more for CUDA's context; several GPUs 0.6 (NCCL),
                 from 0.17 on Hopper and Blackwell 2.2
    CUDA graphs  from 0.20 on in the budget: 0.45 GiB + 5.5 MiB per layer, 0.35 more with experts

The sampler's and the experts' bytes follow from vLLM's code (v1/sample, model_executor/layers/fused_moe), the
other constants from start-up logs of H100, H200 and B200 servers (tests/sim/fit/test_memory_logs.py).
"""

from dataclasses import dataclass

from kvsim.sim.deployment.vllm_defaults import Release
from kvsim.sim.models.draft import Draft
from kvsim.sim.models.spec import GpuSpec, ModelSpec

GIB = 2**30
MIB = 2**20
DRIVER_BYTES, DRIVER_SHARE = 0.3 * GIB, 0.003
HIDDEN_COPIES = 2
WORKSPACES = 2
RUNTIME_BYTES = 0.15 * GIB
CONTEXT_BYTES = 0.5 * GIB
NCCL_BYTES = 0.6 * GIB
FUSED_ALLREDUCE_BYTES = 2.2 * GIB
GRAPH_BYTES, GRAPH_LAYER_BYTES, GRAPH_EXPERT_BYTES = 0.45 * GIB, 5.5 * MIB, 0.35 * GIB
PADDED_HIDDEN, PADDED_INTERMEDIATE = 256, 128
"""The dimensions of mxfp4 experts are padded to multiples of these: by all kernels, and by Marlin's."""


@dataclass(frozen=True)
class Profiled:
    """Bytes on each GPU, and an explanation in words."""

    driver: int
    weights: int
    activations: int
    activations_words: str
    runtime: int
    graphs: int
    draft: int = 0

    @property
    def taken(self) -> int:
        """Everything except the driver's memory; the cache gets the rest."""
        return self.weights + self.draft + self.activations + self.runtime + self.graphs


def profiled(
    model: ModelSpec,
    gpu: GpuSpec,
    rules: Release,
    *,
    tp: int,
    ranks: int = 1,
    stages: int = 1,
    tokens: int,
    seats: int,
    eager: bool = False,
    draft: Draft | None = None,
) -> Profiled:
    """The memory that each GPU of a server needs; the cache gets the rest.

    Parameters
    ----------
    tp, ranks, stages : int
        GPUs that share every layer, ranks of attention that share the experts, stages of layers.
    tokens, seats : int
        Tokens and sequences of a step.
    draft : Draft, optional
        The draft, if the server speculates.
    """
    width = max(2, model.dtype_bytes)
    hidden = width * tokens * model.hidden_size
    experts = WORKSPACES * hidden * model.experts_per_token
    stay = bool(experts) and (rules.keeps_workspaces or 8 <= (model.weight_bits or 0) < 9)
    sampler = rules.sampler_bytes * seats * model.vocab_size
    mlp = width * tokens * (2 * model.hidden_size + 3 * model.intermediate_size / tp)
    largest, name = max((sampler, "sampler"), (mlp, "MLP"), (0 if stay else experts, "experts"))
    words = f"{HIDDEN_COPIES} x {hidden / MIB:,.0f} MiB + {name} {largest / GIB:.2f} GiB"
    if stay:
        words += f" + experts {experts / GIB:.2f} GiB"
    return Profiled(
        driver=int(DRIVER_BYTES + DRIVER_SHARE * gpu.memory_bytes),
        weights=weights_on_gpu(model, gpu, rules, tp=tp, ranks=ranks, stages=stages),
        activations=int(HIDDEN_COPIES * hidden + largest + (experts if stay else 0)),
        activations_words=words,
        runtime=int(_runtime(gpu, rules, tp * ranks * stages)),
        graphs=0 if eager or not rules.graphs_in_budget else int(_graphs(model, stages)),
        draft=0 if draft is None else draft.weight_bytes // tp,
    )


def weights_on_gpu(
    model: ModelSpec, gpu: GpuSpec, rules: Release, *, tp: int = 1, ranks: int = 1, stages: int = 1
) -> int:
    """Bytes of weights on each GPU, including the padding of mxfp4 experts and the parts of MLA not split."""
    experts = model.expert_bytes
    split = model.weight_bytes - experts
    copied = 0.0
    if model.kv_latent_dim:
        each = model.hidden_size * model.kv_latent_dim * (model.weight_bits or 8 * model.dtype_bytes) / 8
        absorbed = model.latent_values * model.heads * 2 * model.head_dim * model.dtype_bytes / tp
        copied += model.layers * (each * (1 - 1 / tp) + absorbed)
    if model.experts:
        copied += model.layers * model.hidden_size * model.experts * model.dtype_bytes * (1 - 1 / tp)
    if model.quantization == "mxfp4":
        experts *= _padding(model, gpu, rules, tp)
    return int((split / tp + experts / (tp * ranks) + copied) / stages)


def _padding(model: ModelSpec, gpu: GpuSpec, rules: Release, tp: int) -> float:
    """Factor by which mxfp4 experts are larger in memory."""
    if not model.experts:
        return 1.0
    inner = model.expert_parameters / (3 * model.layers * model.experts * model.hidden_size) / tp
    wider = _rounded(model.hidden_size, PADDED_HIDDEN) / model.hidden_size
    marlin = not (gpu.is_hopper_or_later and rules.hopper_mxfp4)
    return wider * (_rounded(inner, PADDED_INTERMEDIATE) / inner if marlin else 1.0)


def _rounded(size: float, step: int) -> int:
    return -(-round(size) // step) * step


def _runtime(gpu: GpuSpec, rules: Release, gpus: int) -> float:
    if gpus == 1:
        return RUNTIME_BYTES + CONTEXT_BYTES * rules.counts_context
    return FUSED_ALLREDUCE_BYTES if rules.fuses_allreduces and gpu.is_hopper_or_later else NCCL_BYTES


def _graphs(model: ModelSpec, stages: int) -> float:
    return GRAPH_BYTES + GRAPH_LAYER_BYTES * model.layers / stages + GRAPH_EXPERT_BYTES * bool(model.experts)
