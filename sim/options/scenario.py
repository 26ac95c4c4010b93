"""The server of a run as its user describes it: names and numbers, everything else left to defaults.

    Scenario(model="llama-3.1-8b", gpu="h100", max_num_seqs=64).deployed() -> a Deployment

None means: what the engine, the release, the model or the GPU has by default. Every field is an option of
`sim run`, a keyword of `kvsim.simulate` and a row of docs/commands.md (sim/option.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import POLICIES, EngineConfig, check_reserve, split_reserve
from kvsim.sim.deployment.registry import Classes
from kvsim.sim.deployment.vllm_defaults import Asked
from kvsim.sim.errors import KvsimError
from kvsim.sim.kv.blocks import CACHE_MODES
from kvsim.sim.models.spec import GpuSpec, ModelSpec
from kvsim.sim.option import check_allowed, option

ENGINE, MEMORY, HARDWARE, FLEET = "Engine", "Memory", "Model and GPU", "Fleet"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A server: an engine, its KV memory, a model and GPUs; and how many of them there are."""

    allocator: str | type = option(
        "See: sim allocators; or your own package.module:Class.",
        panel=ENGINE,
        default="paged",
        value="NAME",
        doc="an [allocator](allocators.md), or your own `package.module:Class`; `NAME:RESERVE` for short",
    )
    scheduler: str | type | None = option(
        "See: sim schedulers; a release as in vllm-v1@0.11.0.",
        panel=ENGINE,
        default=None,
        value="NAME",
        shown="vllm-v1 for paged and radix, else orca",
        doc="a [scheduler](schedulers.md), or your own `package.module:Class`",
    )
    max_num_seqs: int | None = option(
        "Most requests computed at once.",
        panel=ENGINE,
        default=None,
        value="N",
        shown="vLLM's for the GPU",
        doc="most sequences computed at once",
    )
    max_num_batched_tokens: int | None = option(
        "Most tokens in a step; prompts are split to fit.",
        panel=ENGINE,
        default=None,
        value="N",
        shown="vLLM's for the GPU",
        doc="most tokens in a step; at least `--max-num-seqs`; "
        "of `vllm-v0`, by default, also at least the longest sequence",
    )
    max_model_len: int | None = option(
        "Most tokens of a request.",
        panel=ENGINE,
        default=None,
        value="N",
        shown="the model's maximum",
        doc="most tokens of a request, prompt and answer together; beyond the model's maximum with a note",
    )
    policy: str = option(
        "Who is next: fcfs (the first to come), priority, sjf (the shortest).",
        panel=ENGINE,
        default=EngineConfig.policy,
        value="NAME",
        allowed=POLICIES,
        doc="who is next: the first to come, the lowest priority number of the trace, the shortest answer",
    )
    enable_chunked_prefill: bool | None = option(
        "Split prompts to fit a step; --no-...: never.",
        panel=ENGINE,
        default=None,
        shown="on",
        doc="whether prompts are split to fit a step",
    )
    enable_prefix_caching: bool | None = option(
        "Share and keep what prompts have in common; --no-...: never.",
        panel=ENGINE,
        default=None,
        shown="vLLM's for the model: on",
        doc="whether the memory of what prompts have in common is "
        "[shared and kept](allocators.md#prefix-cache)",
    )
    async_scheduling: bool | None = option(
        "Decide a step before the last one has ended (vllm-v1; --no-...: not).",
        panel=ENGINE,
        default=EngineConfig.async_scheduling,
        shown="on for vllm-v1@0.33.0",
        doc="whether a step is decided before the last one has ended",
    )
    enforce_eager: bool | None = option(
        "Launch all kernels without CUDA graphs (--cost calibrated).",
        panel=ENGINE,
        default=None,
        shown="off",
        doc="launch all kernels one by one, without CUDA graphs "
        "([`--cost calibrated`](cost.md#calibrated) only)",
    )
    block_size: int | None = option(
        "Tokens of a KV block.",
        panel=MEMORY,
        default=None,
        value="N",
        shown="16",
        doc="tokens of a KV block, a power of two",
    )
    reserve: str | None = option(
        "What those that reserve set aside: max, pow2, oracle, predicted:MODEL.",
        panel=MEMORY,
        default=None,
        value="NAME",
        shown="max",
        doc="what those that reserve set aside: `max`, `pow2` (a power of two), `oracle` (the exact length), "
        "or `predicted:MODEL` ([predictors](allocators.md#predicted-lengths))",
    )
    data_parallel_size: int = option(
        "Ranks of attention that share the experts.",
        panel=HARDWARE,
        default=Deployment.data_parallel_size,
        value="N",
        doc="ranks that compute attention for requests of their own and share the experts "
        "([how](cost.md#ranks-and-stages)); seats, budget and `--num-gpu-blocks` are those of one rank",
    )
    pipeline_parallel_size: int = option(
        "Stages of layers, each on its own GPUs.",
        panel=HARDWARE,
        default=Deployment.pipeline_parallel_size,
        value="N",
        doc="stages of layers, each on GPUs of its own; as many batches are under way "
        "([how](cost.md#ranks-and-stages))",
    )
    gpu_memory_utilization: float | None = option(
        "Share of the GPU's memory to use.",
        panel=MEMORY,
        default=None,
        value="X",
        shown="vLLM's release: 0.92",
        doc="share of the GPU's memory to use, above 0 and at most 1",
    )
    num_gpu_blocks: int | None = option(
        "KV memory in blocks, as engines print it.",
        panel=MEMORY,
        default=None,
        value="N",
        shown="computed",
        doc="KV memory in blocks of `--block-size`, as engines print it; "
        "with windows, blocks of one group of layers",
    )
    kv_tokens: int | None = option(
        "KV memory in tokens instead.",
        panel=MEMORY,
        default=None,
        value="N",
        shown="computed",
    )
    kv_cache_dtype: str = option(
        "Type of a cached number; auto: the model's.",
        panel=MEMORY,
        default=Deployment.kv_cache_dtype,
        value="NAME",
        doc="type of a cached number: `fp8` (`fp8_e4m3`, `fp8_e5m2`), `fp16`, `bf16` (`bfloat16`), `fp32`; "
        "`auto`: the model's",
    )
    disable_hybrid_kv_cache_manager: bool = option(
        "Keep all tokens in windowed layers where other layers do (vLLM).",
        panel=MEMORY,
        default=EngineConfig.disable_hybrid_kv_cache_manager,
        doc="keep all tokens in windowed layers where other layers do "
        "([sliding windows](allocators.md#sliding-windows))",
        short="--no-hybrid-kv",
    )
    mamba_cache_mode: str | None = option(
        "States kept for prefixes: none, at block ends (align), in all blocks.",
        panel=MEMORY,
        default=None,
        value="NAME",
        allowed=CACHE_MODES,
        shown="align with the prefix cache, else none",
        doc="which states of recurrent layers are kept for prefixes ([hybrid models](hybrid.md))",
    )
    prefix_cache_retention_interval: int = option(
        "Ends of windows and states to keep: 0 where prompts end and part, -1 all.",
        panel=MEMORY,
        default=EngineConfig.prefix_cache_retention_interval,
        value="N",
        doc="which ends of windows and states are kept for prefixes: 0 where prompts end and part, -1 all, "
        "else one in so many tokens too ([hybrid models](hybrid.md))",
        short="--cache-retention",
    )
    model: str | ModelSpec = option(
        "See: sim models; or a name of the hub, or a config.json.",
        panel=HARDWARE,
        default="opt-13b",
        value="NAME|FILE",
        doc="one of `sim models`, or its name on the Hugging Face hub; "
        "or a `config.json` of Hugging Face, or its folder",
    )
    gpu: str | GpuSpec = option(
        "See: sim gpus; or your own: six numbers, or a profile.",
        panel=HARDWARE,
        default="a100-40gb",
        value="NAME|FILE",
        doc="one of `sim gpus`, by the name of a GPU or a profile; "
        "or a file: [your own GPU](cost.md#your-own-gpu) in six numbers, or a profile",
    )
    tensor_parallel_size: int = option(
        "GPUs that share every layer.",
        panel=HARDWARE,
        default=Deployment.tensor_parallel_size,
        value="N",
        doc="GPUs that share every layer: weights and KV split, all-reduces added",
    )
    cost: str | type | None = option(
        "Time of a step: calibrated, measured-elsewhere, roofline, constant:SECONDS, logged:..., a profile.",
        panel=HARDWARE,
        default=None,
        value="NAME",
        shown="measured if the GPU was, else roofline",
        doc="[time of a step](cost.md): `calibrated`, `measured-elsewhere`, `roofline`, "
        "`constant:SECONDS`, `logged:MS+US+US` or a file of "
        "[`sim calibrate log`](calibration.md#from-a-servers-log), or `a100-40gb-sosp23`, "
        "the [PagedAttention paper's servers](reproduce.md#step-times); or your own `package.module:Class`",
    )
    frontend_latency: float | None = option(
        "HTTP, tokenizer and detokenizer of a request; 0: the engine alone.",
        panel=HARDWARE,
        default=None,
        value="SECONDS",
        shown="the engine's, beside measured GPU times",
        doc="HTTP, tokenizer and detokenizer of a request, in its TTFT and E2E, and nothing else; "
        "0: the engine alone",
    )
    frontend_load: str = option(
        "Front end: us a prompt token + us a client of a closed loop; auto: the engine's.",
        panel=HARDWARE,
        default=Deployment.frontend_load,
        value="auto|none|US+US",
        doc="what the [front end](cost.md#the-host) takes beside `--frontend-latency`: microseconds for each "
        "prompt token, and for each client of a closed loop; `auto`: the engine's, unless a latency is given",
    )
    quantization: str | None = option(
        "Weights: fp8, awq, gptq, mxfp4, nvfp4, none.",
        panel=HARDWARE,
        default=None,
        value="NAME",
        shown="as the model's",
        doc="weights of other bits: `fp8`, `awq`, `gptq`, `mxfp4`, `nvfp4`, or `none` for 16"
        "; fewer bytes, and products in 8 or 4 bits where the GPU has them",
    )
    enable_expert_parallel: bool = option(
        "Whole experts on each GPU, not a slice of each.",
        panel=HARDWARE,
        default=False,
        doc="each GPU holds whole experts instead of a slice of each; the same all-reduces, no imbalance",
    )
    peer_access: bool | None = option(
        "GPUs without links reach each other over PCIe (--no-...: through the host's memory).",
        panel=HARDWARE,
        default=None,
        shown="as the GPU's: no for rtx-4090 and rtx-5090",
        doc="whether GPUs without NVLink reach each other over PCIe, as `nvidia-smi topo -p2p r` tells, "
        "or [through the host's](cost.md#without-peer-access)",
    )
    time_scale: float = option(
        "Multiply every step's time, as sim replay --fit scale finds it.",
        panel=HARDWARE,
        default=Deployment.time_scale,
        value="X",
        doc="by what every step's time is multiplied, as [`sim replay --fit scale`](replay.md#fit) finds it",
    )
    replicas: int = option(
        "Equal servers on one clock.",
        panel=FLEET,
        default=1,
        value="N",
        doc="equal servers on one clock: a [fleet](fleet.md)",
    )
    router: str | type = option(
        "Spreads requests: round-robin, random, least-requests[:N], least-kv, prefix, mine:Mine.",
        panel=FLEET,
        default="round-robin",
        value="NAME",
        doc="spreads requests: `round-robin`, `random`, `least-requests[:N]`, `least-kv`, `prefix`, or your "
        "own `package.module:Class`",
    )
    sticky: bool = option(
        "A session stays on its first replica.",
        panel=FLEET,
        default=False,
    )
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of one scheduler, allocator, cost or router alone, by name (sim/parts.py)"""

    def __post_init__(self) -> None:
        check_allowed(self)
        if self.reserve is not None:
            check_reserve(self.reserve)

    def with_settings(self, settings: Mapping[str, Any]) -> "Scenario":
        """The same with these settings; one that is no field is an option of a part."""
        common = {each.name for each in fields(self)}
        found = {name: value for name, value in settings.items() if name in common}
        own = {name: value for name, value in settings.items() if name not in common}
        return replace(self, **found | ({"options": {**self.options, **own}} if own else {}))

    def part_options(self) -> dict[str, object]:
        """Options of parts: those in `options`, or beside the others, as a command line has them."""
        common = {each.name for each in fields(Scenario)}
        beside = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in common}
        return {**self.options, **{name: value for name, value in beside.items() if value is not None}}

    def with_allocator(self, chosen: str | type) -> "Scenario":
        """The same with the allocator of `name[:reserve]`, `module:Class[:reserve]`, or with a class."""
        if isinstance(chosen, str):
            name, reserve = split_reserve(chosen)
            return replace(self, allocator=name, reserve=self.reserve if reserve is None else reserve)
        return replace(self, allocator=chosen)

    def deployed(self) -> Deployment:
        """All of it with nothing left open.

        Raises
        ------
        KvsimError
            An unknown name, a value out of its range, or two that exclude each other.
        """
        from kvsim.sim.build import server_defaults
        from kvsim.sim.classes import name_of
        from kvsim.sim.cost.logged import cost_of as log_cost
        from kvsim.sim.cost.profile_files import gpu_and_cost
        from kvsim.sim.models.catalog import model_named
        from kvsim.sim.models.quantization import quantized
        from kvsim.sim.serving.fleet import FleetConfig

        chosen = self.with_allocator(self.allocator)
        given: dict[str, Any] = {each.name: getattr(chosen, each.name) for each in fields(Scenario)}
        given = {name: value for name, value in given.items() if value is not None}
        given["options"] = chosen.part_options()
        for kind in ("allocator", "scheduler", "cost"):
            if kind in given:
                given[kind] = name_of(given[kind])
        chosen_model = self.model if isinstance(self.model, ModelSpec) else model_named(self.model)
        model = quantized(chosen_model, self.quantization)
        if isinstance(self.gpu, GpuSpec):
            if given.get("cost") == "calibrated":
                raise KvsimError(
                    "cost calibrated needs the name of a measured GPU, got one described by hand"
                )
            gpu, cost, profile = self.gpu, log_cost(given.get("cost")) or "roofline", None
        else:
            gpu, cost, profile = gpu_and_cost(self.gpu, given.get("cost"))
        classes = Classes()
        asked = Asked(**{each.name: given.get(each.name) for each in fields(Asked)})
        settings = {
            **server_defaults(given["allocator"], given.get("scheduler"), gpu, model, asked, classes),
            **given,
        }
        engine = EngineConfig(**_of(EngineConfig, settings))
        fleet = FleetConfig(replicas=self.replicas, router=name_of(self.router), sticky=self.sticky)
        specs = {"model": model, "gpu": gpu, "engine": engine, "fleet": fleet, "cost": cost}
        return Deployment(**_of(Deployment, settings) | specs | {"profile": profile, "classes": classes})


def _of(record: type, values: dict[str, Any]) -> dict[str, Any]:
    """The values that are fields of a dataclass."""
    return {each.name: values[each.name] for each in fields(record) if each.name in values}
