"""Compares a startup log with the formula: which term explains the difference, and the answer by the log."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvsim.sim.deployment.vllm_defaults import FAMILY, known_release
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.answer import Fit, fitted
from kvsim.sim.fit.asked import FitOptions
from kvsim.sim.fit.budget import MemoryLine
from kvsim.sim.fit.capacity import GIB, blocks_printed
from kvsim.sim.fit.log import StartupLog, logged
from kvsim.sim.models.spec import ModelSpec

PROFILED = ("activations", "CUDA graphs", "runtime")
"""Terms that vLLM measures at startup and the formula estimates."""


@dataclass(frozen=True)
class Term:
    """One number of the log and kvsim's, and the effect of the difference on the cache size."""

    name: str
    logged: str
    ours: str
    effect: str


def settings_in(log: StartupLog, model: ModelSpec, options: FitOptions) -> FitOptions:
    """The question with settings from the log where the user chose none."""
    leave = ("quantization",) if model.quantization else ()
    if log.release is not None and options.engine == FitOptions().engine:
        options = replace(options, engine=f"{FAMILY}@{known_release(log.release)}")
    return logged(options, log, leave)[0]


def as_logged(log: StartupLog, fit: Fit) -> Fit:
    """The answer with the memory from the log; unchanged if the log lacks it."""
    block = fit.capacity.bytes_per_block
    if log.num_gpu_blocks is not None:
        memory = log.num_gpu_blocks * block
    elif log.kv_tokens is not None:
        memory = blocks_printed(fit.groups, log.kv_tokens, fit.request) * block
    elif (gib := _cache_gib(log)) is not None:
        memory = int(gib * GIB)
    else:
        return fit
    given = log.kv_memory_gib is None or log.num_gpu_blocks is not None
    options = replace(fit.options, kv_memory=memory / GIB) if given else fit.options
    found = fitted(fit.model, fit.gpu, options, kv_memory_bytes=memory)
    return replace(found, lines=tuple(_logged_lines(log, fit, memory)))


def _logged_lines(log: StartupLog, fit: Fit, memory: int) -> Iterator[MemoryLine]:
    """The use of one GPU's memory by the log; the cache's size tells what the profile run took."""
    lines = {line.name: line for line in fit.lines}
    if not lines:
        return
    weights, unused = lines["weights"], lines["not used"]
    if log.weights_gib is not None:
        weights = replace(weights, bytes=int(log.weights_gib * GIB), formula="as logged", source="the log")
    yield weights
    rest = fit.gpu.memory_bytes - unused.bytes - weights.bytes - memory
    if log.kv_memory_gib is not None and log.num_gpu_blocks is None:
        yield MemoryLine("profiled", rest, "what lies between", "activations, graphs, runtime")
    else:
        yield from (line for name, line in lines.items() if name in PROFILED)
        unused = replace(unused, bytes=fit.gpu.memory_bytes - weights.bytes - memory - _profiled(fit))
    yield replace(lines["KV cache"], bytes=memory, formula="as logged", source="the log")
    yield unused


def _cache_gib(log: StartupLog) -> float | None:
    """The cache's memory, measured or set by the user."""
    return log.kv_given_gib if log.kv_memory_gib is None else log.kv_memory_gib


def _profiled(fit: Fit) -> int:
    """Memory of the profile run by the formula."""
    return sum(line.bytes for line in fit.lines if line.name in PROFILED)


def explain(log: StartupLog, fit: Fit) -> list[Term]:
    """Terms in which log and formula differ, by effect on the printed size, largest first."""
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
        rest = _profiled(fit) / GIB
        if lines and log.weights_gib is not None:
            usable = sum(lines.values()) - lines["not used"]
            measured = usable - log.kv_memory_gib - log.weights_gib
            yield Term(
                "activations, graphs, runtime",
                f"{measured:.2f} GiB",
                f"{rest:.2f} GiB",
                tokens(measured - rest),
            )
    block = log.attention_block_size
    if block is not None and block != fit.paged.block_size:
        yield Term("block size", f"{block} tokens", f"{fit.paged.block_size} tokens", "+0 tokens")
    if log.kv_tokens is not None:
        memory, gib = fit.kv_memory_bytes, _cache_gib(log)
        if log.num_gpu_blocks is not None:
            memory = log.num_gpu_blocks * fit.capacity.bytes_per_block
        elif gib is not None:
            memory = int(gib * GIB)
        same = fitted(fit.model, fit.gpu, fit.options, kv_memory_bytes=memory)
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
    """A setting that no log states, and that would give this size."""
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
            asked = replace(options, **change)  # type: ignore[arg-type]
            other = fitted(fit.model, fit.gpu, asked, kv_memory_bytes=fit.kv_memory_bytes)
        except KvsimError:
            continue
        if log.kv_tokens and abs(other.capacity.kv_tokens - log.kv_tokens) <= 0.003 * log.kv_tokens:
            return f"as if {name}"
    return "not explained by one setting"


def _number(effect: str) -> float:
    return float(effect.split(maxsplit=1)[0].replace(",", ""))
