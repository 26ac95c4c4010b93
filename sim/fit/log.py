"""vLLM's startup log: the settings that a server started with, and its memory measurements.

The reader for `sim fit --log` and `sim replay --log`. It understands these lines (V1, all releases since 0.8;
a device is GPU, CPU, XPU, TPU, or one of them + host):

    Initializing a V1 LLM engine (v0.33.0) with config: model='...', ..., max_seq_len=..., device_config=cuda
    non-default args: {'model': '...', 'max_num_seqs': 128, 'gpu_memory_utilization': 0.95, ...}
    Chunked prefill is enabled with max_num_batched_tokens=8192.
    Asynchronous scheduling is enabled.                                 not printed by all releases
    Model loading took 15.27 GiB memory and 3.1 seconds
    Available KV cache memory: 53.43 GiB
    Explicitly set (1.0/23.54) GiB for KV cache on node 0.
    # GPU blocks: 27389, # CPU blocks: 2048
    Overriding num_gpu_blocks=2730 with num_gpu_blocks_override=128
    GPU KV cache size: 389,104 tokens[, Maximum concurrency for 40,960 tokens per request: 9.50x]
    Graph capturing finished in 5 secs, took 0.55 GiB
    Setting attention block size to 576 tokens ...

Anything missing in a log stays None and means the release's default. CPUs have their own defaults.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import plain_bytes

SIZE = r"(-?[\d.]+) ?Gi?B"
FLAGS = {
    "model": r"(?:\bmodel=|'model(?:_tag)?': )'([^']+)'",
    "num_gpu_blocks": r"num_gpu_blocks_override[=:' ]+(\d+)|# [A-Z]+ blocks: (\d+)",
    "max_num_seqs": r"max_num_seqs'?[=:] ?(\d+)",
    "max_num_batched_tokens": r"max_num_batched_tokens'?[=:] ?(\d+)",
    "gpu_memory_utilization": r"gpu_memory_utilization'?[=:] ?([\d.]+)",
    "async_scheduling": r"async_scheduling'?[=:] ?(True|False)|Asynchronous scheduling is (enabled|disabled)",
    "enable_expert_parallel": r"enable_expert_parallel'?[=:] ?(True|False)",
    "block_size": r"'block_size': (\d+)",
}
"""Values on the lines with the server's flags."""
CONFIG = {
    "max_model_len": r"max_seq_len=(\d+)",
    "tensor_parallel_size": r"tensor_parallel_size=(\d+)",
    "pipeline_parallel_size": r"pipeline_parallel_size=(\d+)",
    "data_parallel_size": r"data_parallel_size=(\d+)",
    "kv_cache_dtype": r"kv_cache_dtype=([\w]+)",
    "quantization": r"\bquantization=([\w-]+)",
    "enable_prefix_caching": r"enable_prefix_caching=(True|False)",
    "enable_chunked_prefill": r"enable_chunked_prefill=(True|False)",
    "enforce_eager": r"enforce_eager=(True|False)",
    "device": r"device_config=(\w+)",
}
"""Settings on the line with the engine's configuration."""
FOUND = {
    "release": r"Initializing a V1 LLM engine \(v([\d.]+)",
    "weights_gib": rf"Model loading took {SIZE}",
    "kv_memory_gib": rf"Available KV cache memory: {SIZE}",
    "kv_given_gib": rf"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV|reserved {SIZE} memory for KV Cache",
    "kv_tokens": r"[A-Z]+(?: \+ host)? KV cache size: ([\d,]+) tokens",
    "max_model_len": r"Maximum concurrency for ([\d,]+) tokens",
    "max_concurrency": r"tokens per request: ([\d.]+)x",
    "graphs_gib": rf"Graph capturing finished in [\d.]+ secs, took {SIZE}",
    "attention_block_size": r"Setting attention block size to (\d+) tokens",
}
"""Measurements of the engine."""
SIZES = ("kv_tokens", "kv_memory_gib", "kv_given_gib", "weights_gib", "num_gpu_blocks")
"""A log without any of these is not a startup log."""
WEIGHTS = {
    **{"fp8": "fp8", "fbgemm_fp8": "fp8", "awq": "awq", "awq_marlin": "awq", "gptq": "gptq"},
    **{"gptq_marlin": "gptq", "mxfp4": "mxfp4", "gpt_oss_mxfp4": "mxfp4", "modelopt_fp4": "nvfp4"},
}
"""vLLM's name of a quantization -> its `--quantization` name; other names do not tell the bits."""
CPU_BLOCK_TOKENS, CPU_TOKENS, CPU_SEATS = 128, 2048, 128
"""Defaults of `vllm serve` on CPUs: block size, and tokens and seats per device
(vllm/platforms/cpu.py, vllm/engine/arg_utils.py)."""

Asked = TypeVar("Asked")


@dataclass(frozen=True)
class StartupLog:
    """Content of a startup log; None for anything missing.

    Attributes
    ----------
    release, device, model : str or None
    weights_gib, kv_memory_gib, graphs_gib : float or None
        The engine's measurements, per GPU.
    kv_given_gib : float or None
        The cache's memory, if the user set it.
    kv_tokens, max_concurrency : int, float or None
        As printed.
    num_gpu_blocks : int or None
        Block ids, including the null block.
    attention_block_size : int or None
        The block size as adjusted for recurrent layers.

    All others are settings, by their names in `FitOptions` and `Scenario`.
    """

    release: str | None = None
    device: str | None = None
    model: str | None = None
    weights_gib: float | None = None
    kv_memory_gib: float | None = None
    kv_given_gib: float | None = None
    graphs_gib: float | None = None
    kv_tokens: int | None = None
    max_concurrency: float | None = None
    num_gpu_blocks: int | None = None
    attention_block_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    enable_expert_parallel: bool | None = None
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    enable_chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    enforce_eager: bool | None = None

    def settings(self) -> dict[str, object]:
        """The server's settings, as far as the log has them; with a CPU's own defaults."""
        names = [each.name for each in fields(self)]
        found = {name: getattr(self, name) for name in names[names.index("max_model_len") :]}
        found["quantization"] = WEIGHTS.get(self.quantization or "")
        if self.device == "cpu":
            world = (self.tensor_parallel_size or 1) * (self.pipeline_parallel_size or 1)
            own = {
                "block_size": CPU_BLOCK_TOKENS,
                "max_num_batched_tokens": CPU_TOKENS * world,
                "max_num_seqs": CPU_SEATS * world,
                "async_scheduling": False,
            }
            found |= {name: value for name, value in own.items() if found[name] is None}
        return {name: value for name, value in found.items() if value not in (None, "auto")}


def read_log(path: Path) -> StartupLog:
    """The content of the log, which may be compressed (.gz).

    Raises
    ------
    KvsimError
        If it cannot be read, or holds none of the lines.
    """
    content = plain_bytes(path, f"log {str(path)!r}:")
    text = content.decode("utf-8", errors="replace")
    found: dict[str, object] = {}
    for patterns in (FLAGS, CONFIG, FOUND):
        for name, pattern in patterns.items():
            match = re.search(pattern, text)
            if match:
                said = next(each for each in match.groups() if each)
                try:
                    found[name] = _value(name, said)
                except ValueError as error:
                    raise KvsimError(f"log {str(path)!r}: {name} must be a number, got {said!r}") from error
    if not found.keys() & set(SIZES):
        raise KvsimError(
            f"log {str(path)!r} holds no line of a vLLM start-up, as 'GPU KV cache size: ... tokens'"
        )
    return StartupLog(**found)  # type: ignore[arg-type]


def logged(asked: Asked, log: StartupLog, leave: Collection[str] = ()) -> tuple[Asked, Mapping[str, object]]:
    """The question with settings from the log that its user did not choose; and these settings.

    `asked` is a record of options (`FitOptions`, `Scenario`): non-default values were chosen by the user.
    Names in `leave` stay unchanged.
    """
    usual = {each.name: each.default for each in fields(asked)}  # type: ignore[arg-type]
    changes = {
        name: value
        for name, value in log.settings().items()
        if name in usual and name not in leave and getattr(asked, name) == usual[name] != value
    }
    return replace(asked, **changes), changes  # type: ignore[type-var]


def _value(name: str, text: str) -> object:
    kind = str(StartupLog.__dataclass_fields__[name].type)
    if "bool" in kind:
        return text in ("True", "enabled")
    if "int" in kind:
        return int(text.replace(",", ""))
    return float(text) if "float" in kind else text
