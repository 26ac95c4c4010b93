"""vLLM's start-up log beside the formula: which term explains the difference.

Lines that are understood (V1, all releases since 0.8):

    Initializing a V1 LLM engine (v0.33.0) with config: model='...', ..., max_seq_len=..., kv_cache_dtype=...
    Model loading took 15.27 GiB memory and 3.1 seconds
    Available KV cache memory: 53.43 GiB
    GPU KV cache size: 389,104 tokens[, Maximum concurrency for 40,960 tokens per request: 9.50x]
    Graph capturing finished in 5 secs, took 0.55 GiB
    Setting attention block size to 576 tokens ...
    non-default args: {'model': '...', 'max_num_seqs': 128, 'gpu_memory_utilization': 0.95, ...}
    Chunked prefill is enabled with max_num_batched_tokens=8192.
    # GPU blocks: 27389, # CPU blocks: 2048          num_gpu_blocks_override=512
    Asynchronous scheduling is enabled.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.answer import Fit, fitted
from kvsim.sim.fit.asked import FitOptions
from kvsim.sim.fit.capacity import GIB

SIZE = r"([\d.]+) ?Gi?B"
PATTERNS = {
    "release": r"Initializing a V1 LLM engine \(v([\d.]+)",
    "weights_gib": rf"Model loading took {SIZE}",
    "kv_memory_gib": rf"Available KV cache memory: {SIZE}",
    "kv_tokens": r"GPU KV cache size: ([\d,]+) tokens",
    "max_model_len": r"Maximum concurrency for ([\d,]+) tokens",
    "max_concurrency": r"tokens per request: ([\d.]+)x",
    "graphs_gib": rf"Graph capturing finished in [\d.]+ secs, took {SIZE}",
    "block_size": r"Setting attention block size to (\d+) tokens",
}
FLAGS = {
    "model": r"(?:\bmodel=|'model(?:_tag)?': )'([^']+)'",
    "num_gpu_blocks": r"# GPU blocks: (\d+)|num_gpu_blocks_override[=:' ]+(\d+)",
    "max_num_seqs": r"max_num_seqs'?[=:] ?(\d+)",
    "max_num_batched_tokens": r"max_num_batched_tokens'?[=:] ?(\d+)",
    "gpu_memory_utilization": r"gpu_memory_utilization'?[=:] ?([\d.]+)",
    "async_scheduling": r"async_scheduling'?[=:] ?(True|False)",
    "scheduling": r"Asynchronous scheduling is (enabled|disabled)",
}
"""What the lines with its flags say, where they were given."""
CONFIG = {
    "max_model_len": r"max_seq_len=(\d+)",
    "tensor_parallel_size": r"tensor_parallel_size=(\d+)",
    "kv_cache_dtype": r"kv_cache_dtype=([\w]+)",
    "enable_prefix_caching": r"enable_prefix_caching=(True|False)",
    "enforce_eager": r"enforce_eager=(True|False)",
}
"""What the line with the engine's configuration says of the settings."""


@dataclass(frozen=True)
class StartupLog:
    """What a start-up log says; None for what it does not."""

    release: str | None = None
    weights_gib: float | None = None
    kv_memory_gib: float | None = None
    kv_tokens: int | None = None
    max_model_len: int | None = None
    max_concurrency: float | None = None
    graphs_gib: float | None = None
    block_size: int | None = None
    tensor_parallel_size: int | None = None
    kv_cache_dtype: str | None = None
    enable_prefix_caching: bool | None = None
    enforce_eager: bool | None = None
    model: str | None = None
    num_gpu_blocks: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    async_scheduling: bool | None = None


@dataclass(frozen=True)
class Term:
    """One number of the log beside ours, and what its difference does to the size of the cache."""

    name: str
    logged: str
    ours: str
    effect: str


def read_log(path: Path) -> StartupLog:
    """What the log says.

    Raises
    ------
    KvsimError
        When it cannot be read, or holds none of the lines.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise KvsimError(f"log {str(path)!r}: cannot be read ({error.strerror})") from error
    found: dict[str, object] = {}
    for patterns in (FLAGS, CONFIG, PATTERNS):
        for name, pattern in patterns.items():
            match = re.search(pattern, text)
            if match:
                found[name] = _value(name, next(each for each in match.groups() if each))
    scheduling = found.pop("scheduling", None)
    if scheduling is not None:
        found["async_scheduling"] = scheduling == "enabled"
    if not found.keys() & {"kv_tokens", "kv_memory_gib", "weights_gib", "num_gpu_blocks"}:
        raise KvsimError(
            f"log {str(path)!r} holds no line of a vLLM start-up, as 'GPU KV cache size: ... tokens'"
        )
    return StartupLog(**found)  # type: ignore[arg-type]


def _value(name: str, text: str) -> object:
    if name == "scheduling":
        return text
    kind = StartupLog.__dataclass_fields__[name].type
    if "bool" in str(kind):
        return text == "True"
    if "int" in str(kind):
        return int(text.replace(",", ""))
    return float(text) if "float" in str(kind) else text


def settings_in(log: StartupLog, options: FitOptions) -> FitOptions:
    """The question with the settings that the log states and the user does not."""
    changes: dict[str, object] = {}
    usual = FitOptions()
    for name in CONFIG:
        stated = getattr(log, name)
        if stated is not None and getattr(options, name) == getattr(usual, name):
            changes[name] = stated
    return replace(options, **changes)  # type: ignore[arg-type]


def explain(log: StartupLog, fit: Fit) -> list[Term]:
    """The terms in which log and formula differ, the largest effect on the printed size first."""
    return sorted(_terms(log, fit), key=lambda term: -abs(_number(term.effect)))


def _terms(log: StartupLog, fit: Fit) -> Iterator[Term]:
    per_gib = fit.capacity.kv_tokens / max(1, fit.kv_memory_bytes) * GIB
    lines = {line.name: line.bytes / GIB for line in fit.lines}

    def tokens(gib: float) -> str:
        return f"{-gib * per_gib:+,.0f} tokens"

    if log.weights_gib is not None:
        ours = fit.weights_bytes / GIB
        yield Term("weights", f"{log.weights_gib:.2f} GiB", f"{ours:.2f} GiB", tokens(log.weights_gib - ours))
    if log.kv_memory_gib is not None:
        rest = lines.get("activations", 0) + lines.get("CUDA graphs", 0) + lines.get("runtime", 0)
        if lines and log.weights_gib is not None:
            usable = sum(lines.values()) - lines["not used"]
            measured = usable - log.kv_memory_gib - log.weights_gib
            yield Term(
                "activations, graphs, runtime",
                f"{measured:.2f} GiB",
                f"{rest:.2f} GiB",
                tokens(measured - rest),
            )
    if log.block_size is not None and log.block_size != fit.paged.block_size:
        yield Term("block size", f"{log.block_size} tokens", f"{fit.paged.block_size} tokens", "+0 tokens")
    if log.kv_tokens is not None:
        memory = log.kv_memory_gib if log.kv_memory_gib is not None else fit.kv_memory_bytes / GIB
        same = fitted(fit.model, fit.gpu, replace(fit.options, kv_memory=memory))
        left = log.kv_tokens - same.capacity.kv_tokens
        rounding = 0.005 * per_gib + same.capacity.bytes_per_block / GIB * per_gib
        about = "rounding of the log's GiB" if abs(left) <= rounding else _guess(log, same)
        yield Term(
            f"size of the same memory: {about}",
            f"{log.kv_tokens:,} tokens",
            f"{same.capacity.kv_tokens:,} tokens",
            f"{left:+,} tokens",
        )


def _guess(log: StartupLog, fit: Fit) -> str:
    """Which setting that no log states would print this size."""
    options = fit.options
    budget = fit.engine.max_num_batched_tokens
    changes: list[tuple[str, dict[str, object]]] = [
        ("scheduling is not asynchronous", {"async_scheduling": False}),
        ("the cache is fp8", {"kv_cache_dtype": "fp8"}),
        ("the hybrid manager is off", {"disable_hybrid_kv_cache_manager": True}),
        ("prefix caching is off", {"enable_prefix_caching": False}),
    ]
    for size in (2048, 4096, 8192, 16_384, 32_768):
        if size != budget:
            seats = min(size, fit.engine.max_num_seqs)
            change: dict[str, object] = {"max_num_batched_tokens": size, "max_num_seqs": seats}
            changes.append((f"the token budget is {size:,}", change))
    for size in (32, 64, 128):
        changes.append((f"blocks hold {size} tokens", {"block_size": size}))
    for name, change in changes:
        try:
            other = fitted(fit.model, fit.gpu, replace(options, **change))  # type: ignore[arg-type]
        except KvsimError:
            continue
        if log.kv_tokens and abs(other.capacity.kv_tokens - log.kv_tokens) <= 0.003 * log.kv_tokens:
            return f"as if {name}"
    return "not explained by one setting"


def _number(effect: str) -> float:
    return float(effect.split(maxsplit=1)[0].replace(",", ""))
