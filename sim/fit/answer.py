"""`fit`: where a GPU's memory goes, how the layers are grouped, and how many requests fit.

    fit("qwen3-next-80b-a3b", "h200", tensor_parallel_size=2).capacity.kv_tokens

Options not given take the default of vLLM's release (sim/deployment/vllm_defaults.py).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import get_type_hints

from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.deployment.draft import draft_for
from kvsim.sim.deployment.profile_run import weights_on_gpu
from kvsim.sim.deployment.speculation import Speculation
from kvsim.sim.deployment.vllm_defaults import FAMILY, NEWEST, Asked, VllmDefaults, rules_of, vllm_defaults
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.asked import FitOptions
from kvsim.sim.fit.budget import MemoryLine, budget
from kvsim.sim.fit.capacity import GIB, Capacity, capacity_of, pipeline_capacity, stages_of
from kvsim.sim.fit.lengths import LengthFit, length_fits, parse_lengths
from kvsim.sim.fit.notes import Numbers, notes_of
from kvsim.sim.kv.blocks import KvSettings, Paged, compute_capability, paged
from kvsim.sim.kv.groups import groups_of
from kvsim.sim.kv.pages import Group, Request, request_blocks, scheduler_block_sizes
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.draft import Draft
from kvsim.sim.models.quantization import quantized
from kvsim.sim.models.spec import GpuSpec, ModelSpec
from kvsim.sim.option import check_kinds

MOST_GPUS = 64
"""The largest split that is tried if a model does not fit."""


@dataclass(frozen=True, repr=False)
class Fit:
    """The answer.

    Attributes
    ----------
    model, gpu, options : ModelSpec, GpuSpec, FitOptions
        The question.
    engine : VllmDefaults
        The settings in effect: requested ones and the release's defaults.
    lines : tuple of MemoryLine
        The use of one GPU's memory; empty if the cache's memory was given.
    kv_memory_bytes : int
    paged, groups, capacity : Paged, tuple of Group, Capacity
        The pages of the layers, the groups that share block tables, and what the pool holds.
    lengths : tuple of LengthFit
    notes : tuple of str
        Notes on these numbers.
    """

    model: ModelSpec
    gpu: GpuSpec
    options: FitOptions
    engine: VllmDefaults
    lines: tuple[MemoryLine, ...]
    kv_memory_bytes: int
    paged: Paged
    groups: tuple[Group, ...]
    capacity: Capacity
    request: Request
    lengths: tuple[LengthFit, ...]
    notes: tuple[str, ...]

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights on one GPU."""
        for line in self.lines:
            if line.name == "weights":
                return line.bytes
        options, rules = self.options, rules_of(self.engine.release)
        tp, stages = options.tensor_parallel_size, options.pipeline_parallel_size
        return weights_on_gpu(self.model, self.gpu, rules, tp=tp, stages=stages)

    @property
    def gpus_in_words(self) -> str:
        """The number and type of GPUs that share the model."""
        split, stages = self.options.tensor_parallel_size, self.options.pipeline_parallel_size
        counts = [str(count) for count in (stages, split) if count > 1]
        return " x ".join([*counts, self.gpu.name])

    @property
    def cache_hit_alignment_tokens(self) -> int:
        """Prefix hits are multiples of this many tokens: every group's block size divides it."""
        return scheduler_block_sizes(self.groups, self.paged.block_size, self.engine.enable_prefix_caching)[0]

    @property
    def log_line(self) -> str:
        """The line that vLLM logs about this pool."""
        tokens, times = self.capacity.kv_tokens, self.capacity.max_concurrency
        return (
            f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for "
            f"{self.request.max_model_len:,} tokens per request: {times:.2f}x"
        )

    def __repr__(self) -> str:
        blocks = f"{self.capacity.num_blocks:,} blocks"
        return f"<kvsim.Fit {self.model.name} on {self.gpus_in_words}: {blocks}; {self.log_line}>"

    def as_json(self) -> dict[str, object]:
        """The answer in JSON types."""
        return {
            "model": self.model.name,
            "gpu": self.gpu.name,
            "options": asdict(self.options),
            "engine": asdict(self.engine),
            "memory": [asdict(line) for line in self.lines],
            "weights_bytes": self.weights_bytes,
            "kv_memory_bytes": self.kv_memory_bytes,
            "groups": [group_json(group, self.request) for group in self.groups],
            "block_size": self.paged.block_size,
            "bytes_per_block": self.capacity.bytes_per_block,
            "pipeline_parallel_size": self.options.pipeline_parallel_size,
            "num_blocks": self.capacity.num_blocks,
            "kv_tokens": self.capacity.kv_tokens,
            "max_concurrency": self.capacity.max_concurrency,
            "max_model_len": self.request.max_model_len,
            "max_in_flight_tokens": self.request.in_flight_tokens,
            "cache_hit_alignment_tokens": self.cache_hit_alignment_tokens,
            "blocks_per_request": self.capacity.blocks_per_request,
            "longest_request": self.capacity.longest,
            "refused": self.capacity.refusal,
            "log_line": self.log_line,
            "lengths": [asdict(each) for each in self.lengths],
            "notes": list(self.notes),
        }


def group_json(group: Group, request: Request) -> dict[str, object]:
    """A group in JSON types."""
    pages = sorted({page.bytes for page in group.pages})
    page = group.page
    return {
        "kind": group.kind,
        "layers": list(group.layers),
        "count": len(group.layers),
        "block_size": page.block_size,
        "page_bytes": pages[0] if len(pages) == 1 else sum(each.bytes for each in group.pages),
        "layer_page_bytes": [[size, sum(each.bytes == size for each in group.pages)] for size in pages],
        "padding_bytes": sum(each.bytes - each.content_bytes for each in group.pages),
        "window": page.window if group.kind == "sliding_window" else None,
        "chunk": page.chunk if group.kind == "chunked_local_attention" else None,
        "blocks_per_request": request_blocks([group], request),
    }


def fit(model: str | ModelSpec, gpu: str | GpuSpec = "h100", **options: object) -> Fit:
    """The use of a GPU's memory when it serves a model, and how many requests fit.

    Parameters
    ----------
    model : str or ModelSpec
        A built-in name, a config.json or its folder, or a spec.
    gpu : str or GpuSpec
        A built-in name, a measured profile, or a file with six numbers.
    **options
        Fields of FitOptions; `kv_memory` sets the cache's memory in GiB, instead of the formula.

    Returns
    -------
    Fit

    Raises
    ------
    KvsimError
        If vLLM would refuse the settings. A cache too small for one request of the longest length is no
        error: `capacity.refusal` says how much is missing, and what would help.
    """
    unknown = sorted(set(options) - {each.name for each in fields(FitOptions)})
    if unknown:
        raise KvsimError(f"fit knows no option {', '.join(unknown)}")
    check_kinds(options, get_type_hints(FitOptions))
    spec = model_named(model) if isinstance(model, str) else model
    device = gpu_and_cost(gpu, None)[0] if isinstance(gpu, str) else gpu
    return fitted(spec, device, FitOptions(**options))  # type: ignore[arg-type]


def fitted(model: ModelSpec, gpu: GpuSpec, options: FitOptions, *, kv_memory_bytes: int | None = None) -> Fit:
    """The answer to a complete question; `kv_memory_bytes`: the cache's memory as reported by an engine."""
    model = quantized(model, options.quantization)
    answer = _answered(model, gpu, options, kv_memory_bytes)
    numbers = Numbers(answer.engine, answer.paged, answer.groups, answer.capacity, answer.request)
    notes = [f"{model.name}: {note}" for note in model.notes]
    stages = options.pipeline_parallel_size
    if stages > 1:
        notes.append(
            f"{stages} stages share the layers as evenly as possible, and the weights are assumed to be "
            "shared evenly, too: a block id stands for the layers of its stage on each GPU"
        )
    notes += notes_of(numbers, answer.cache_hit_alignment_tokens)
    notes += _refused(answer, split=kv_memory_bytes is None and options.kv_memory is None)
    asked = parse_lengths(options.lengths) if options.lengths else ()
    pool = answer.capacity
    fits = length_fits(answer.groups, pool.num_blocks, pool.bytes_per_block, asked)
    return replace(answer, lengths=fits, notes=tuple(notes))


def _answered(model: ModelSpec, gpu: GpuSpec, options: FitOptions, kv_memory_bytes: int | None = None) -> Fit:
    _check(options, model)
    engine = engine_of(model, gpu, options)
    settings = settings_of(gpu, options, engine)
    said = options.speculative_config
    draft = draft_for(None if said is None else Speculation.of_json(said), model)
    layers = paged(model, settings)
    if draft is not None:
        layers = with_draft(layers, draft, model.layers, settings)
    groups = tuple(groups_of(layers.layers, settings.disable_hybrid))
    if not groups:
        raise KvsimError(f"model {model.name} caches nothing")
    lines: tuple[MemoryLine, ...] = ()
    if kv_memory_bytes is None and options.kv_memory is not None:
        kv_memory_bytes = int(options.kv_memory * GIB)
    if kv_memory_bytes is None:
        lines = budget(
            model,
            gpu,
            options.tensor_parallel_size,
            engine,
            eager=bool(options.enforce_eager),
            stages=options.pipeline_parallel_size,
            draft=draft,
        )
    memory = _cache_bytes(lines) if kv_memory_bytes is None else kv_memory_bytes
    stages = options.pipeline_parallel_size
    longest, in_flight = options.max_model_len or model.max_model_len, engine.in_flight_of(stages)
    request = Request(longest, in_flight, engine.max_num_batched_tokens)
    if stages > 1:
        held = stages_of(groups, model.layers, stages)
        capacity = pipeline_capacity(groups, held, [memory] * stages, request)
    else:
        capacity = capacity_of(groups, memory, request)
    return Fit(model, gpu, options, engine, lines, memory, layers, groups, capacity, request, (), ())


def with_draft(layers: Paged, draft: Draft, first: int, settings: KvSettings) -> Paged:
    """The pages with those of a draft's layers, which vLLM puts after the model's own."""
    own = paged(draft.model, replace(settings, block_size=layers.block_size)).layers
    pages = [page for _, page in own] * (draft.kv_layers // len(own))
    return replace(layers, layers=(*layers.layers, *enumerate(pages, first)))


def _refused(answer: Fit, *, split: bool) -> list[str]:
    """Says that vLLM would not start, how much is missing and, if asked, the smallest split that would do."""
    if answer.capacity.refusal is None:
        return []
    told = f"vLLM would not start: {answer.capacity.refusal}"
    tp = answer.options.tensor_parallel_size
    while split and (tp := 2 * tp) <= MOST_GPUS:
        try:
            other = _answered(answer.model, answer.gpu, replace(answer.options, tensor_parallel_size=tp))
        except KvsimError:
            break
        if other.capacity.refusal is None:
            return [f"{told}; it would with --tensor-parallel-size {tp}"]
    return [told]


def _check(options: FitOptions, model: ModelSpec) -> None:
    """Raise KvsimError if a number is impossible."""
    stages = options.pipeline_parallel_size
    if not 1 <= stages <= model.layers:
        raise KvsimError(
            f"pipeline_parallel_size must be at least 1 and at most {model.layers} (layers), got {stages}"
        )
    for name, most in (("kv_memory", None), ("gpu_memory_utilization", 1)):
        value = getattr(options, name)
        if value is not None and (not value > 0 or (most is not None and value > most)):
            limit = "" if most is None else f" and at most {most}"
            raise KvsimError(f"{name} must be above 0{limit}, got {value}")
    for name in ("max_num_batched_tokens", "max_num_seqs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise KvsimError(f"{name} must be at least 1, got {value}")


def engine_of(model: ModelSpec, gpu: GpuSpec, options: FitOptions) -> VllmDefaults:
    """The engine's settings: requested ones, and the release's defaults for the rest."""
    name, _, release = options.engine.partition("@")
    if name != FAMILY:
        raise KvsimError(f"engine must be {FAMILY}@RELEASE, got {options.engine!r}")
    asked = Asked(**{each.name: getattr(options, each.name) for each in fields(Asked)})
    return vllm_defaults(
        release or NEWEST, gpu, model, use=options.use, mode=options.performance_mode, asked=asked
    )


def settings_of(gpu: GpuSpec, options: FitOptions, engine: VllmDefaults) -> KvSettings:
    """The settings of the KV cache."""
    return KvSettings(
        tensor_parallel_size=options.tensor_parallel_size,
        kv_cache_dtype=options.kv_cache_dtype,
        block_size=options.block_size,
        prefix_caching=engine.enable_prefix_caching,
        mamba_cache_mode=options.mamba_cache_mode,
        max_model_len=options.max_model_len,
        disable_hybrid=options.disable_hybrid_kv_cache_manager,
        compute_capability=compute_capability(gpu),
    )


def _cache_bytes(lines: Sequence[MemoryLine]) -> int:
    return next(line.bytes for line in lines if line.name == "KV cache")
