"""How many tokens of KV cache fit: the arena that allocators share out.

    |<------------------- GPU memory ------------------->|
    |<------ x gpu_memory_utilization ------>|  not ours |
    | weights | activations | runtime |  KV  |           |

    tokens = (memory * utilization - weights / tp - activations - runtime) / KV bytes per token per GPU

    activations = dtype_bytes * max_num_batched_tokens * (4 * hidden + 3 * intermediate / tp)
                + 10 * max_num_seqs * vocab

the peak of a profile run as vLLM does one: residual, norm, attention in and out; gate, up and their
product; logits of every sequence in 16 bit and twice in 32 bit (sampling). The runtime is a fixed
0.3 GiB: CUDA context, libraries, communication buffers.

Given counts win, then the PagedAttention paper's own server, then the formula. It ignores fragmentation
of the weights, CUDA graphs (vLLM takes them from outside its share) and pipeline parallelism. Rounding to
whole blocks is the allocators' work.
"""

from dataclasses import dataclass

from sim.catalog import GIB, gpu_named, model_named
from sim.config import Scenario, can_split
from sim.errors import KvsimError

RUNTIME_BYTES = 3 * GIB // 10

PAPER_TOKENS = 15_744
"""KV slots of OPT-13B on one A100-40GB: 984 blocks of 16 (Kwon et al., SOSP 2023, Figure 2)."""


@dataclass(frozen=True)
class KvCapacity:
    """The KV cache of a server.

    Attributes
    ----------
    tokens : int
        Tokens whose keys and values fit.
    kv_bytes_per_token : int
        Bytes of one token over the whole model.
    reason : str
        Where the number comes from, for humans.
    """

    tokens: int
    kv_bytes_per_token: int
    reason: str


@dataclass(frozen=True)
class _Share:
    """Bytes of one GPU: what the engine may take, and what it needs before the first token is cached."""

    available: float
    weights: float
    activations: float
    per_token: int

    @property
    def kv(self) -> float:
        return self.available - self.weights - self.activations - RUNTIME_BYTES


def kv_capacity(scenario: Scenario) -> KvCapacity:
    """Tokens of KV cache, and why so many.

    Raises
    ------
    KvsimError
        When the model does not fit, or leaves no room for a token (for a block, with a paged allocator).
    """
    model = scenario.model
    least = scenario.engine.block_size if scenario.engine.allocator == "paged" else 1
    if scenario.num_gpu_blocks is not None:
        tokens, reason = scenario.num_gpu_blocks * scenario.engine.block_size, "given"
    elif scenario.kv_tokens is not None:
        tokens, reason = scenario.kv_tokens, "given"
        if tokens < least:
            raise KvsimError(f"kv_tokens must be at least one block ({least} tokens), got {tokens}")
    elif _is_papers_own(scenario):
        tokens, reason = PAPER_TOKENS, "reported by the PagedAttention paper (Figure 2; 12 GiB)"
    else:
        tokens, reason = _computed(scenario, least)
    return KvCapacity(tokens, model.kv_bytes_per_token, reason)


def _is_papers_own(scenario: Scenario) -> bool:
    return (
        scenario.model == model_named("opt-13b")
        and scenario.gpu == gpu_named("a100-40gb")
        and scenario.tensor_parallel_size == 1
        and scenario.gpu_memory_utilization == 0.9
    )


def _computed(scenario: Scenario, least: int) -> tuple[int, str]:
    """Tokens by the formula above and the sum in words; raises when fewer than `least` fit."""
    model, gpu, tp = scenario.model, scenario.gpu, scenario.tensor_parallel_size
    share = _share(scenario, tp)
    tokens = int(share.kv // share.per_token)
    needs = " + ".join(
        f"{what} {_gib(count)}"
        for what, count in (
            ("weights", share.weights),
            ("activations", share.activations),
            ("runtime", RUNTIME_BYTES),
        )
    )
    each = " on each GPU" if tp > 1 else ""
    have = (
        f"{_gib(share.available)} available{each} "
        f"({gpu.memory_bytes / GIB:g} GiB x {scenario.gpu_memory_utilization:g})"
    )
    if tokens >= least:
        return tokens, f"{have} - {needs} leaves {_gib(share.kv)}"
    if share.kv < 0:
        problem = f"{needs} need {_gib(-share.kv)} more than the {have}"
    else:
        problem = f"{needs} leave {tokens} tokens of the {have}, at least {least} are needed"
    raise KvsimError(
        f"model {model.name} does not fit on {tp} x {gpu.name}: {problem}; {_advice(scenario, least)}"
    )


def _share(scenario: Scenario, tp: int) -> _Share:
    model, gpu, engine = scenario.model, scenario.gpu, scenario.engine
    return _Share(
        available=gpu.memory_bytes * scenario.gpu_memory_utilization,
        weights=model.weight_bytes / tp,
        activations=model.dtype_bytes
        * engine.max_num_batched_tokens
        * (4 * model.hidden_size + 3 * model.intermediate_size / tp)
        + 10 * engine.max_num_seqs * model.vocab_size,
        per_token=model.kv_bytes_per_token_per_gpu(tp),
    )


def _advice(scenario: Scenario, least: int) -> str:
    """The smallest split, up to 16 GPUs, that would fit."""
    for tp in range(scenario.tensor_parallel_size + 1, 17):
        if can_split(scenario.model, tp):
            share = _share(scenario, tp)
            if share.kv >= least * share.per_token:
                return f"try --tensor-parallel-size {tp} or a larger GPU"
    return "try a larger GPU"


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"
