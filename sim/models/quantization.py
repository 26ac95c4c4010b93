"""Models with other weights than published: `--quantization`, by vLLM's names.

    fp8     8 bits, products in 8 bits if the GPU can
    awq     4 bits, and a scale and a zero point per 128 weights; products in 16 bits
    gptq    the same
    mxfp4   4 bits, and 8 per 32 weights; only the experts, if a model has any
    nvfp4   4 bits, and 8 per 16 weights; products in 4 bits if the GPU can
    none    16 bits, whatever the model's config says

Embeddings and the output matrix stay unchanged.
"""

from dataclasses import replace

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.spec import ModelSpec

BITS = {"fp8": 8.0, "awq": 4.15625, "gptq": 4.15625, "mxfp4": 4.25, "nvfp4": 4.5}
"""Name -> bits per weight, including scales."""


def quantized(model: ModelSpec, name: str | None) -> ModelSpec:
    """The model with these weights; unchanged without a name."""
    if name is None or name == model.quantization:
        return model
    if name == "none":
        return replace(model, quantization=None, weight_bits=None, quantized_parameters=0)
    if name not in BITS:
        raise KvsimError(f"quantization must be one of {', '.join([*BITS, 'none'])}, got {name!r}")
    some = model.expert_parameters if name == "mxfp4" and model.experts else model.body_parameters
    return replace(model, quantization=name, weight_bits=BITS[name], quantized_parameters=some)
