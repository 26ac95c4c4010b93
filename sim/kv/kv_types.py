"""Data types of the KV cache by their vLLM names, and their bytes per token in one layer.

    auto, bfloat16, float16       2 bytes
    fp8, fp8_e4m3, fp8_e5m2       1 byte, one scale for all
    fp8_ds_mla                    1 byte with its own scales: only for latents that an index reads
    *_per_token_head              8 or 4 bits, and a scale of 4 bytes per key and value
    turboquant_*                  packed codes; the first and last two layers stay unpacked

MLA caches one latent; in fp8, DeepSeek-V3.2's sparse kernels store it in 656 bytes (512 in fp8, scales, and
the 64 rotated numbers in 16 bits): `fp8_ds_mla`, which any fp8 type means before Blackwell.
"""

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.kv_layers import KvLayers

PLAIN_BYTES = {
    **{"auto": None, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2, "fp32": 4, "float32": 4},
    **{"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_ds_mla": 1},
}
PER_HEAD_BITS = {"int8_per_token_head": 8, "fp8_per_token_head": 8, "int4_per_token_head": 4}
TURBO_BITS = {
    "turboquant_k8v4": (8, 4),
    "turboquant_4bit_nc": (4, 4),
    "turboquant_k3v4_nc": (3, 4),
    "turboquant_3bit_nc": (3, 3),
}
"""Bits per number of a key and of a value."""

SCALE_BYTES = 4
SPARSE_FP8_LATENT_BYTES = 656
NAMES = (*PLAIN_BYTES, *PER_HEAD_BITS, *TURBO_BITS)


def check_kv_type(name: str) -> None:
    """Raise KvsimError for a type that vLLM lacks."""
    if "nvfp4" in name:
        raise KvsimError(
            f"kv_cache_dtype {name!r} is not known here: only FlashInfer on Blackwell lays it out; fp8 takes "
            "about twice its bytes"
        )
    if name not in NAMES:
        raise KvsimError(f"kv_cache_dtype must be one of {', '.join(NAMES)}, got {name!r}")


def is_fp8(name: str) -> bool:
    """Whether numbers are cached in fp8 with one scale."""
    return PLAIN_BYTES.get(name) == 1


def token_bytes(layers: KvLayers, name: str, tp: int, model_bytes: int) -> int:
    """Bytes per token in one of these layers on each GPU.

    Parameters
    ----------
    layers : KvLayers
        Attention layers.
    name : str
        The cache's type.
    tp, model_bytes : int
        GPUs that share a layer; bytes per number if the type is auto.
    """
    numbers = layers.numbers_per_token(tp)
    if layers.dtype_bytes is not None:
        return numbers * layers.dtype_bytes
    if name == "fp8_ds_mla":
        return SPARSE_FP8_LATENT_BYTES
    if name in PER_HEAD_BITS:
        heads = numbers // (layers.head_dim + layers.value_dim)
        return numbers * PER_HEAD_BITS[name] // 8 + heads * 2 * SCALE_BYTES
    if name in TURBO_BITS:
        heads = numbers // (layers.head_dim + layers.value_dim)
        return heads * _turbo_slot(layers, *TURBO_BITS[name])
    return numbers * (PLAIN_BYTES[name] or model_bytes)


def _turbo_slot(layers: KvLayers, key_bits: int, value_bits: int) -> int:
    """Bytes per head and token: codes of key and value, the key's norm, the value's scale and zero point."""
    key = layers.head_dim if key_bits == 8 else -(-layers.head_dim * key_bits // 8) + 2
    slot = key + -(-layers.value_dim * value_bits // 8) + 4
    return slot + slot % 2
