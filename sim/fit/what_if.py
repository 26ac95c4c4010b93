"""The effect of other settings: the same question with one change at a time."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.answer import Fit, fitted
from kvsim.sim.kv.blocks import kv_layers_of_model
from kvsim.sim.models.spec import ModelSpec


@dataclass(frozen=True)
class WhatIf:
    """A change and its answer, or the `error` if it is impossible."""

    name: str
    fit: Fit | None
    error: str | None = None


def what_ifs(base: Fit) -> list[WhatIf]:
    """The changes that apply to this model and these settings.

    If an engine reported its cache memory, that scales as the formula's does.
    """
    found = []
    logged = base.kv_memory_bytes - fitted(base.model, base.gpu, base.options).kv_memory_bytes
    for name, model, changes in _changes(base):
        options = replace(base.options, **changes)  # type: ignore[arg-type]
        try:
            other = fitted(model, base.gpu, options)
            if logged:
                memory = other.kv_memory_bytes + logged
                other = fitted(model, base.gpu, options, kv_memory_bytes=memory)
            found.append(WhatIf(name, other))
        except KvsimError as error:
            found.append(WhatIf(name, None, str(error)))
    return found


def _changes(base: Fit) -> Iterator[tuple[str, ModelSpec, dict[str, object]]]:
    """(name, model, options that change)."""
    model, options = base.model, base.options
    kinds = {layers.kind for layers in kv_layers_of_model(model)}
    local = kinds & {"sliding_window", "chunked_local_attention"}
    tp = options.tensor_parallel_size
    if options.kv_memory is None:
        yield f"tensor parallel {2 * tp}", model, {"tensor_parallel_size": 2 * tp}
    if options.kv_cache_dtype == "auto":
        yield "fp8 cache", model, {"kv_cache_dtype": "fp8"}
    for size in (16, 64, 128):
        if size != base.paged.block_size and "mamba" not in kinds:
            yield f"blocks of {size}", model, {"block_size": size}
    if "mamba" in kinds and base.engine.enable_prefix_caching:
        yield "no prefix caching", model, {"enable_prefix_caching": False}
    if local and "mamba" not in kinds and not options.disable_hybrid_kv_cache_manager:
        yield "windows keep every token", model, {"disable_hybrid_kv_cache_manager": True}
    if local and base.engine.async_scheduling:
        yield "synchronous scheduling", model, {"async_scheduling": False}
    if local or options.kv_memory is None:
        budget = base.engine.max_num_batched_tokens // 4
        seats = min(base.engine.max_num_seqs, budget)
        yield f"token budget {budget:,}", model, {"max_num_batched_tokens": budget, "max_num_seqs": seats}
    if model.weight_bits is None and options.kv_memory is None:
        body = max(1, model.body_parameters)
        for name, method, bits in (("fp8 weights", "fp8", 8.0), ("4-bit weights", "awq", 4 + 20 / 128)):
            other = replace(model, quantization=method, weight_bits=bits, quantized_parameters=body)
            yield name, other, {"quantization": None}
    if base.capacity.longest and base.capacity.longest < base.request.max_model_len:
        yield f"max-model-len {base.capacity.longest:,}", model, {"max_model_len": base.capacity.longest}
