"""vLLM's defaults for settings that the user leaves out: token budget, seats, and features.

    GPU                                     LLM class         server             any other use
    160 GiB and more (from 0.28)         16,384 x 1,024    16,384 x 1,024       2,048 x 128
    70 GiB and more, no A100, no GB10    16,384 x 1,024     8,192 x 1,024       2,048 x 128
    all others                            8,192 x   256     2,048 x   256       2,048 x 128

tokens per step x sequences. Performance mode `throughput` doubles both. Without chunked prefill the budget
is at least the longest sequence; it never exceeds seats x longest sequence, nor do the seats exceed the
budget. Prefixes are cached, except for models that are only recurrent or have an encoder (whose prompts are
not chunked either). 0.14 began to schedule asynchronously, 0.20 to take 92 % of the GPU's memory instead of
90, and 0.28 introduced the class of 160 GiB.

From vLLM's own code: vllm/engine/arg_utils.py (get_batch_defaults, once _set_default_args_v1), vllm/config/.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.spec import GpuSpec, ModelSpec

GIB = 2**30
USES = ("server", "llm", "other")
"""`vllm serve`; the LLM class in Python; anything else."""

MODES = ("balanced", "interactivity", "throughput")
BUDGET = {
    "largest": {"llm": (16_384, 1024), "server": (16_384, 1024)},
    "large": {"llm": (16_384, 1024), "server": (8_192, 1024)},
    "other": {"llm": (8_192, 256), "server": (2_048, 256)},
}
ANY_OTHER_USE = (2_048, 128)


@dataclass(frozen=True, kw_only=True)
class Release:
    """What differs between releases.

    Attributes
    ----------
    largest_gib : int or None
        Least memory of a GPU of the largest class.
    spares_a100 : bool
        Whether an A100 of 80 GB is in the small class.
    sampler_bytes : int
        Bytes per seat and vocabulary entry, at the peak of the profile run.
    counts_context : bool
        Whether CUDA's context is taken from the engine's share.
    hopper_mxfp4 : bool
        Whether mxfp4 experts have their own kernels on Hopper; else Marlin's.
    keeps_workspaces : bool
        Whether the workspaces of experts stay allocated, for all weight types.
    fuses_allreduces : bool
        Whether several Hopper GPUs reserve memory for fused all-reduces.
    graphs_in_budget : bool
        Whether CUDA graphs are taken from the engine's share.
    """

    gpu_memory_utilization: float
    async_scheduling: bool
    reserve_full_prompt: bool
    largest_gib: int | None
    sampler_bytes: int = 38
    counts_context: bool = False
    spares_a100: bool = True
    hopper_mxfp4: bool = True
    keeps_workspaces: bool = False
    fuses_allreduces: bool = False
    graphs_in_budget: bool = False


_0_7 = Release(
    gpu_memory_utilization=0.90,
    async_scheduling=False,
    reserve_full_prompt=False,
    largest_gib=None,
    sampler_bytes=6,
    counts_context=True,
    spares_a100=False,
    hopper_mxfp4=False,
)
_0_8 = replace(_0_7, sampler_bytes=38, counts_context=False)
_0_9 = replace(_0_8, spares_a100=True)
_0_11 = replace(_0_9, hopper_mxfp4=True)
_0_14 = replace(_0_11, async_scheduling=True, keeps_workspaces=True)
_0_17 = replace(_0_14, reserve_full_prompt=True, sampler_bytes=14, fuses_allreduces=True)
_0_20 = replace(_0_17, gpu_memory_utilization=0.92, graphs_in_budget=True)
RELEASES: dict[tuple[int, int], Release] = {
    (0, 7): _0_7,
    (0, 8): _0_8,
    (0, 9): _0_9,
    (0, 11): _0_11,
    (0, 14): _0_14,
    (0, 17): _0_17,
    (0, 20): _0_20,
    (0, 28): replace(_0_20, largest_gib=160),
}
"""Rules, with the release from which on they apply."""
OLDEST, NEWEST = "0.7.0", "0.33.0"
FIRST, LAST = (0, 7), (0, 33)
RECORDED = ("0.11.0", "0.33.0")
"""Releases whose scheduler was recorded step by step."""


def rules_of(release: str) -> Release:
    """The rules of a release: 0.9.2, 0.11.2rc1.

    Raises
    ------
    KvsimError
        If it is not a release with V1, or is newer than the latest known one.
    """
    number = release_number(release)
    if number is None or not FIRST <= number <= LAST:
        raise KvsimError(f"vLLM release must be {OLDEST} to {NEWEST}, got {release!r}")
    return RELEASES[max(each for each in RELEASES if each <= number)]


def known_release(release: str | None) -> str:
    """The release itself if its defaults are known, else the nearest one; the newest for None."""
    number = release_number(release or NEWEST)
    if release is None or number is None or number > LAST:
        return NEWEST
    return release if number >= FIRST else OLDEST


def scheduled_as(release: str) -> str:
    """The recorded release that schedules the same way: up to 0.13 it is 0.11.0, which waits for its host."""
    return RECORDED[rules_of(release).async_scheduling]


def release_number(release: str) -> tuple[int, int] | None:
    """The first two numbers of 0.12.0 or 0.11.2rc1; None for anything else."""
    found = re.fullmatch(r"(\d+)\.(\d+)(?:\.[\w.+-]*)?", release, re.ASCII)
    return (int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True, kw_only=True)
class VllmDefaults:
    """An engine's settings if the user chooses none.

    Attributes
    ----------
    release : str
    max_num_batched_tokens, max_num_seqs : int
    gpu_memory_utilization : float
    enable_chunked_prefill, enable_prefix_caching, async_scheduling, reserve_full_prompt : bool
    prefix_cache_retention_interval : int
        0: prefixes of windows and states are kept at replay boundaries and junctions only.
    """

    release: str
    max_num_batched_tokens: int
    max_num_seqs: int
    gpu_memory_utilization: float
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    reserve_full_prompt: bool = True
    prefix_cache_retention_interval: int = 0

    @property
    def in_flight_tokens(self) -> int:
        """Tokens scheduled but not yet settled: one budget per step in flight."""
        return self.in_flight_of(1)

    def in_flight_of(self, stages: int) -> int:
        """`in_flight_tokens` of a pipeline: one step per stage, one more if scheduling is asynchronous."""
        return self.max_num_batched_tokens * (stages + self.async_scheduling)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The user's settings; None: decided by the engine."""

    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    max_model_len: int | None = None


def vllm_defaults(
    release: str,
    gpu: GpuSpec,
    model: ModelSpec,
    *,
    use: str = "server",
    mode: str = "balanced",
    asked: Asked | None = None,
) -> VllmDefaults:
    """The settings that a release starts with on a GPU.

    Parameters
    ----------
    release : str
        From 0.7.0 on.
    gpu, model : GpuSpec, ModelSpec
    use : "server", "llm" or "other"
    mode : "balanced", "interactivity" or "throughput"
    asked : Asked or None
        Settings that are given; others follow from them.

    Raises
    ------
    KvsimError
        If the settings do not work together: vLLM also refuses them.
    """
    if use not in USES:
        raise KvsimError(f"use must be one of {', '.join(USES)}, got {use!r}")
    if mode not in MODES:
        raise KvsimError(f"performance_mode must be one of {', '.join(MODES)}, got {mode!r}")
    asked, of = asked or Asked(), rules_of(release)
    tokens, seats = BUDGET[_memory_class(gpu, of)].get(use, ANY_OTHER_USE)
    if mode == "throughput":
        tokens, seats = 2 * tokens, 2 * seats
    longest = asked.max_model_len or model.max_model_len
    chunked = _first(asked.enable_chunked_prefill, not has_encoder(model))
    seats = asked.max_num_seqs or seats
    if asked.max_num_batched_tokens is not None:
        tokens = asked.max_num_batched_tokens
    else:
        tokens = min(max(tokens, 0 if chunked else longest), seats * longest)
    if asked.max_num_seqs is None:
        seats = min(seats, tokens)
    elif tokens < seats:
        raise KvsimError(f"max_num_batched_tokens must be at least max_num_seqs ({seats}), got {tokens}")
    chosen = {field.name: getattr(asked, field.name) for field in fields(Asked)}
    return VllmDefaults(
        release=release,
        max_num_batched_tokens=tokens,
        max_num_seqs=seats,
        gpu_memory_utilization=chosen["gpu_memory_utilization"] or of.gpu_memory_utilization,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=_first(chosen["enable_prefix_caching"], caches_prefixes(model)),
        async_scheduling=_first(chosen["async_scheduling"], of.async_scheduling),
        reserve_full_prompt=of.reserve_full_prompt,
    )


def caches_prefixes(model: ModelSpec) -> bool:
    """Whether prefixes are cached by default: not for models without attention, or with an encoder."""
    return not has_encoder(model) and {layers.kind for layers in model.kv_layers} != {"mamba"}


def has_encoder(model: ModelSpec) -> bool:
    """Whether some layers attend to an encoder's output."""
    return any(layers.kind == "cross_attention" for layers in model.kv_layers)


def _first(asked: bool | None, default: bool) -> bool:
    return default if asked is None else asked


def _memory_class(gpu: GpuSpec, release: Release) -> str:
    gib, name = gpu.memory_bytes / GIB, gpu.name.lower()
    if release.largest_gib is not None and gib >= release.largest_gib:
        return "largest"
    spared = "gb10" in name or (release.spares_a100 and "a100" in name)
    return "large" if gib >= 70 and not spared else "other"


FAMILY = "vllm-v1"
"""The scheduler whose releases have these defaults."""
PAPERS_SERVERS = {("opt-13b", "a100-40gb"), ("opt-66b", "a100-40gb"), ("opt-175b", "a100-80gb")}
"""Model and GPU of the PagedAttention paper's servers, which are older than any of these releases."""
OF_ANY_ENGINE = ("max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization")
"""Settings that engines without defaults of their own take from vLLM, for comparison on one server."""


def release_settings(
    scheduler: str | None, gpu: GpuSpec, model: ModelSpec, asked: Asked | None = None
) -> Mapping[str, int | float | bool]:
    """A server's default settings on this GPU, by kvsim's names: those of its release, or of the newest.

    Empty for other engines, and for the PagedAttention paper's own servers. Prefix caching stays off if
    `sim run` keeps no prefixes (windows and recurrent layers before 0.14).
    """
    name, _, release = (scheduler or FAMILY).partition("@")
    if name != FAMILY or (model.name, gpu.name) in PAPERS_SERVERS:
        return {}
    found = vllm_defaults(release or NEWEST, gpu, model, asked=asked)
    alike = not model.window_layers and all(
        layers.kind in ("full_attention", "mla_attention") for layers in model.kv_layers
    )
    keeps_prefixes = alike or (scheduled_as(release or NEWEST) == RECORDED[-1] and bool(model.kv_layers))
    return {
        "max_num_batched_tokens": found.max_num_batched_tokens,
        "max_num_seqs": found.max_num_seqs,
        "gpu_memory_utilization": found.gpu_memory_utilization,
        "enable_chunked_prefill": found.enable_chunked_prefill,
        "enable_prefix_caching": found.enable_prefix_caching and keeps_prefixes,
        "async_scheduling": found.async_scheduling,
    }


def defaults_note(release: str, gpus: Sequence[str], settings: Mapping[str, Sequence[object]]) -> str:
    """One line for a report: which settings are a release's own, each with its values."""
    told = ", ".join(f"{name} {' or '.join(map(_told, values))}" for name, values in settings.items())
    return f"vLLM {release} defaults for {', '.join(gpus)}: {told}." if told else ""


def _told(value: object) -> str:
    return f"{value:,}" if type(value) is int else str(value)
