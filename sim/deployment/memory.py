"""The number of KV cache tokens that fit: the size of the allocator's arena.

    tokens = (what the profile run leaves - states) / KV bytes per token

What the profile run leaves is computed as in `sim fit` (profile_run.py): the GPU's memory minus the driver's,
x gpu_memory_utilization, minus weights, activations, runtime and CUDA graphs, as in the scheduler's release
of vLLM (for other schedulers, as in the newest). One of vLLM's blocks is the null block, which stays empty.

With pipeline stages, a GPU holds its stage's share of the weights, the states and the KV of a token. With
attention ranks (data parallel), each rank has its own cache, and the experts are spread over all ranks; the
arena is that of all ranks together.

A model with recurrent layers (Mamba, gated delta nets) also needs their states: max_num_seqs of them are
reserved here. (vLLM takes them from the cache as sequences come; `sim fit` counts them this way.)

If layers are kept in groups (sim/models/kv_groups.py), a slot holds one token of one group, a token takes
a slot of each group, and the division above is by the bytes of a slot. Otherwise there is one group: a slot
is a token. A draft's weights, and its own layers' keys and values of each token, take the same memory
(sim/models/draft.py).

Counts given by the user take precedence, then the PagedAttention paper's own server, then the formula.
Allocators round to whole blocks.
"""

from dataclasses import dataclass, replace

from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.draft import draft_of
from kvsim.sim.deployment.profile_run import Profiled, profiled
from kvsim.sim.deployment.vllm_defaults import FAMILY, NEWEST, known_release, rules_of
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import GIB, gpu_named, model_named
from kvsim.sim.models.kv_groups import KvGroups
from kvsim.sim.models.spec import can_split

PAPERS_TOKENS = {
    ("opt-13b", "a100-40gb", 1): (15_744, "Figure 2; 12 GiB"),
    ("opt-66b", "a100-40gb", 4): (9_700, "Table 1; 21 GB"),
    ("opt-175b", "a100-80gb", 8): (60_100, "Table 1; 264 GB"),
}
"""KV slots of the PagedAttention paper's servers (Kwon et al., SOSP 2023, Table 1); the first: 984 blocks."""


@dataclass(frozen=True)
class KvCapacity:
    """The KV cache of a server.

    Attributes
    ----------
    tokens : int
        Tokens whose keys and values fit, in all layers.
    kv_bytes_per_token : int
        Bytes of one token over the whole model.
    reason : str
        Source of the number, for display.
    slots_per_token : int
        Groups of layers; a token takes a slot in each.
    slots : int
        Slots of the arena: `tokens * slots_per_token` plus a remainder.
    groups : KvGroups or None
        The groups, if memory behind windows is freed.
    """

    tokens: int
    kv_bytes_per_token: int
    reason: str
    slots_per_token: int
    slots: int
    groups: KvGroups | None = None


@dataclass(frozen=True)
class _Share:
    """Bytes of one GPU: available to the engine, found by its profile run, needed for states."""

    available: float
    found: Profiled
    states: int
    per_slot: float

    @property
    def kv(self) -> float:
        return self.available - self.found.taken - self.states

    @property
    def in_words(self) -> str:
        """`weights 14.9 GiB + activations 4.8 GiB + runtime 0.2 GiB`."""
        found = self.found
        parts = {
            "weights": found.weights,
            "draft": found.draft,
            "activations": found.activations,
            "runtime": found.runtime,
            "CUDA graphs": found.graphs,
            "recurrent states": self.states,
        }
        return " + ".join(f"{what} {_gib(count)}" for what, count in parts.items() if count)


def kv_capacity(deployment: Deployment, groups: KvGroups | None = None) -> KvCapacity:
    """The number of KV cache tokens, and its source.

    Parameters
    ----------
    deployment : Deployment
    groups : KvGroups or None
        The groups, for an allocator that frees memory behind windows. A block of `num_gpu_blocks` then
        belongs to one group, as vLLM counts them, and `kv_tokens` are tokens of all groups, as vLLM prints
        them. None: every layer keeps every token, in one group.

    Raises
    ------
    KvsimError
        If the model does not fit, or leaves no room for a token (for a block, with a paged allocator).
    """
    model, per_token = deployment.served_model, groups.count if groups else 1
    layers = groups.layers_per_group if groups else model.caching_layers
    if not model.kv_bytes_per_token:
        raise KvsimError(
            f"model {model.name} keeps nothing per token: all its layers are recurrent; sim fit says "
            "how many sequences fit"
        )
    least = deployment.engine.block_size if deployment.allocator.has_blocks else 1
    if deployment.num_gpu_blocks is not None:
        blocks = deployment.num_gpu_blocks * deployment.data_parallel_size
        slots, reason = blocks * deployment.engine.block_size, "given"
        if slots < least * per_token:
            raise KvsimError(
                f"num_gpu_blocks must be at least {per_token}, one of each group of layers, "
                f"got {deployment.num_gpu_blocks}"
            )
    elif deployment.kv_tokens is not None:
        slots, reason = deployment.kv_tokens * per_token, "given"
        if deployment.kv_tokens < least:
            raise KvsimError(
                f"kv_tokens must be at least one block ({least} tokens), got {deployment.kv_tokens}"
            )
    elif reported := reported_bytes(deployment):
        slots, reason = reported[0] // model.kv_bytes_per_token, reported[1]
    else:
        slots, reason = _computed(deployment, layers, per_token, least)
    return KvCapacity(slots // per_token, model.kv_bytes_per_token, reason, per_token, slots, groups)


def reported_bytes(deployment: Deployment) -> tuple[int, str] | None:
    """Bytes of cache that a paper reports for its server, and their source; None for other servers."""
    each, tp = deployment.served_model.kv_bytes_per_token, deployment.tensor_parallel_size
    model, gpu = deployment.model, deployment.gpu
    tokens, where = PAPERS_TOKENS.get((model.name, gpu.name, tp), (0, ""))
    if (
        not tokens
        or (model, gpu) != (model_named(model.name), gpu_named(gpu.name))
        or each != model.kv_bytes_per_token
        or deployment.gpus != tp
        or deployment.gpu_memory_utilization != 0.9
    ):
        return None
    return tokens * each, f"reported by the PagedAttention paper ({where})"


def _computed(deployment: Deployment, layers: int, per_token: int, least: int) -> tuple[int, str]:
    """Slots of `layers` layers by the formula above, and the sum in words; raises below `least` tokens."""
    model, gpu, tp = deployment.model, deployment.gpu, deployment.tensor_parallel_size
    share, ranks = _share(deployment, tp, layers), deployment.data_parallel_size
    block = deployment.engine.block_size if _has_null_block(deployment) else 0
    slots = int(share.kv // share.per_slot) - block
    needs, have = share.in_words, _have(deployment, share)
    if slots >= least * per_token:
        in_all = f", {ranks} times" if ranks > 1 else ""
        return ranks * slots, f"{have} - {needs} leaves {_gib(share.kv)}{in_all}"
    if share.kv < 0:
        problem = f"{needs} need {_gib(-share.kv)} more than the {have}"
    else:
        left = int(share.kv // share.per_slot) // per_token
        problem = f"{needs} leave {left} tokens of the {have}, at least {least} are needed"
    raise KvsimError(
        f"model {model.name} does not fit on {deployment.gpus} x {gpu.name}: {problem}; "
        f"{_advice(deployment, layers, least * per_token)}"
    )


def cache_bytes(deployment: Deployment) -> tuple[float, str]:
    """Bytes of one GPU for a cache that also holds the states, and the sum in words; negative: too few."""
    share = _share(deployment, deployment.tensor_parallel_size, deployment.model.caching_layers or 1)
    share = replace(share, states=0)
    return share.kv, f"{_have(deployment, share)} - {share.in_words} leaves {_gib(share.kv)}"


def gpu_memory(deployment: Deployment) -> dict[str, int] | None:
    """Bytes of one GPU, part by part, as in `sim fit`; None if the KV capacity was given or reported."""
    if deployment.num_gpu_blocks or deployment.kv_tokens or reported_bytes(deployment):
        return None
    share = _share(deployment, deployment.tensor_parallel_size, deployment.model.caching_layers or 1)
    found, usable = share.found, int(share.available)
    return {
        "weights": found.weights,
        **({"draft": found.draft} if found.draft else {}),
        "activations": found.activations,
        "CUDA graphs": found.graphs,
        "runtime": found.runtime,
        "KV cache": usable - found.taken,
        "not used": deployment.gpu.memory_bytes - usable,
    }


def _have(deployment: Deployment, share: _Share) -> str:
    """The memory that the engine may take, in words."""
    gpu, each = deployment.gpu, " on each GPU" if deployment.gpus > 1 else ""
    seen = (gpu.memory_bytes - share.found.driver) / GIB
    return f"{_gib(share.available)} available{each} ({seen:.1f} GiB x {deployment.gpu_memory_utilization:g})"


def _has_null_block(deployment: Deployment) -> bool:
    """Whether vLLM V1 allocates the blocks, one of which holds no token."""
    scheduler = deployment.engine.scheduler or deployment.allocator.scheduler or FAMILY
    return scheduler.startswith(FAMILY) and deployment.allocator.has_blocks


def _share(deployment: Deployment, tp: int, layers: int) -> _Share:
    """The memory of one of `tp` GPUs for slots that hold a token of `layers` layers."""
    model, gpu, engine = deployment.served_model, deployment.gpu, deployment.engine
    stages = deployment.pipeline_parallel_size
    name, _, release = (engine.scheduler or "").partition("@")
    draft = draft_of(deployment)
    found = profiled(
        model,
        gpu,
        rules_of(known_release(release or None) if name == FAMILY else NEWEST),
        tp=tp,
        ranks=deployment.data_parallel_size,
        stages=stages,
        tokens=engine.max_num_batched_tokens,
        seats=engine.max_num_seqs,
        eager=engine.enforce_eager,
        draft=draft,
    )
    per_token = model.kv_bytes_per_token_per_gpu(tp) + (draft.kv_bytes_per_token(tp) if draft else 0)
    return _Share(
        available=int((gpu.memory_bytes - found.driver) * deployment.gpu_memory_utilization),
        found=found,
        states=engine.max_num_seqs * model.state_bytes_per_sequence(tp) // stages,
        per_slot=per_token * layers // max(model.caching_layers, 1) / stages,
    )


def _advice(deployment: Deployment, layers: int, least: int) -> str:
    """The smallest split, up to 16 GPUs, that would fit."""
    for tp in range(deployment.tensor_parallel_size + 1, 17):
        if can_split(deployment.model, tp):
            share = _share(deployment, tp, layers)
            if share.kv >= least * share.per_slot:
                return f"try --tensor-parallel-size {tp} or a larger GPU"
    return "try a larger GPU"


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"
