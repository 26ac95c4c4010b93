"""The options of `sim fit`, besides the model and the GPU."""

from dataclasses import dataclass
from typing import Any

from kvsim.sim.deployment.vllm_defaults import MODES, USES
from kvsim.sim.option import option

ENGINE = "vllm-v1@0.33.0"
PANEL = "Engine"
"""The help panel of `sim fit`'s options."""


def _asked(default: Any, words: str, metavar: str = "", show_default: str = "", short: str = "") -> Any:  # noqa: ANN401
    """A field that is an option of `sim fit`."""
    return option(words, panel=PANEL, default=default, value=metavar, shown=show_default, short=short)


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The question, besides the model and the GPU; None: decided by the engine."""

    tensor_parallel_size: int = _asked(1, "GPUs that share every layer.")
    pipeline_parallel_size: int = _asked(1, "GPUs, or groups of them, that hold a stage of layers each.")
    quantization: str | None = _asked(
        None, "Bits of the weights.", metavar="fp8|awq|gptq|mxfp4|nvfp4|none", show_default="the model's"
    )
    kv_cache_dtype: str = _asked("auto", "Data type of the KV cache.", metavar="auto|fp8|bf16|...")
    block_size: int | None = _asked(None, "Tokens per block.", show_default="the engine's")
    max_model_len: int | None = _asked(None, "Maximum tokens per request.", show_default="the model's")
    gpu_memory_utilization: float | None = _asked(
        None, "Share of the GPU's memory to use.", show_default="the release's: 0.92"
    )
    kv_memory: float | None = _asked(
        None, "Memory of the cache on each GPU, given.", metavar="GIB", show_default="what is left"
    )
    max_num_batched_tokens: int | None = _asked(
        None, "Maximum tokens per step.", show_default="the release's"
    )
    max_num_seqs: int | None = _asked(None, "Maximum requests at once.", show_default="the release's")
    enable_prefix_caching: bool | None = _asked(None, "Keep prefixes.", show_default="the release's")
    async_scheduling: bool | None = _asked(
        None, "Schedule a step before the previous one has ended.", show_default="the release's"
    )
    enable_chunked_prefill: bool | None = _asked(None, "Split prompts.", show_default="the release's")
    enforce_eager: bool | None = _asked(None, "No CUDA graphs.", show_default="off")
    disable_hybrid_kv_cache_manager: bool = _asked(
        False,
        "Windows and chunks keep every token.",
        short="--no-hybrid-kv",
    )
    mamba_cache_mode: str | None = _asked(
        None, "When recurrent states are kept.", metavar="none|align|all", show_default="align with prefixes"
    )
    speculative_config: str | None = _asked(
        None,
        "Speculative decoding, as vLLM's JSON: its draft's weights and KV.",
        metavar="JSON",
        show_default="off",
    )
    use: str = _asked("server", "How vLLM is started.", metavar="|".join(USES))
    performance_mode: str = _asked("balanced", "vLLM's own option.", metavar="|".join(MODES))
    engine: str = _asked(ENGINE, "The engine and its release.")
    lengths: str | None = _asked(
        None, "Requests of these sizes, prompt + answer.", metavar="1000+200,...", show_default="none"
    )
