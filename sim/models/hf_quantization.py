"""The precision of a checkpoint's weights, from its quantization_config: bits per weight, and which weights.

    method               bits per weight, including scales and zero points          reference
    fp8, fbgemm_fp8      8, + 32 / block if scales are by block                     DeepSeek-V3
    awq                  w_bit + 16 / group + w_bit / group                          AutoAWQ
    gptq                 bits + 16 / group + bits / group                            AutoGPTQ
    compressed-tensors   num_bits, + 16 / group; fp4: 4 + 8 / 16; mxfp4: 4 + 8 / 32  llm-compressor
    mxfp4                4 + 8 / 32, experts only                                    gpt-oss (OCP MX)
    modelopt             FP8: 8; NVFP4: 4 + 8 / 16                                   NVIDIA Model Optimizer
    bitsandbytes         8-bit: 8; 4-bit: 4 + 32 / 64, twice quantized 4 + 8 / 64 + 32 / (64 * 256)

Embeddings, routers and norms stay in the model's type, as do the output matrix (unless the config says
otherwise) and everything the config excludes by name. An unlisted method raises an error that names it.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.hf_modules import Module

EXCLUSIONS = (
    *("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"),
    *("llm_int8_skip_modules", "modules_to_not_quantize", "dynamic"),
)
"""Keys under which methods list the modules they exclude."""

METHODS = (
    *("fp8", "fbgemm_fp8", "awq", "gptq", "compressed-tensors", "mxfp4", "gpt_oss_mxfp4", "modelopt"),
    *("modelopt_fp4", "bitsandbytes"),
)


class Quantization(NamedTuple):
    """The quantization of a checkpoint, and its extent."""

    method: str
    bits: float
    parameters: int


def quantization_of(given: object, modules: Iterable[Module]) -> Quantization | None:
    """The quantization of a config whose model has these modules; None if there is none.

    Raises
    ------
    KvsimError
        For an unknown method or format.
    """
    if given is None or given == {}:
        return None
    if not isinstance(given, Mapping):
        raise KvsimError(f"quantization_config must be an object, got {given!r}")
    method = str(given.get("quant_method") or "").lower().replace("_", "-")
    if not method and given.get("quant_algo"):
        method = "modelopt"
    method = {"fbgemm-fp8": "fbgemm_fp8", "gpt-oss-mxfp4": "mxfp4", "modelopt-fp4": "modelopt"}.get(
        method, method
    )
    if method not in METHODS:
        raise KvsimError(
            f"quantization_config.quant_method must be one of {', '.join(METHODS)}, "
            f"got {given.get('quant_method')!r}"
        )
    if method == "compressed-tensors" and not given.get("config_groups"):
        return None  # it may compress only the cache
    bits = _bits(method, given)
    return Quantization(
        method, bits, sum(module.parameters for module in modules if _is_quantized(method, given, module))
    )


def _bits(method: str, given: Mapping[str, object]) -> float:
    """Bits per weight, including the weight's share of scales and zero points."""
    if method in ("fp8", "fbgemm_fp8"):
        block = given.get("weight_block_size")
        return 8 + 32 / (block[0] * block[1]) if isinstance(block, list) and len(block) == 2 else 8
    if method in ("awq", "gptq"):
        bits = _number(given, "bits", _number(given, "w_bit", 0))
        if bits <= 0:
            raise KvsimError(f"quantization_config.bits is missing: {method} has weights of several widths")
        group = _number(given, "group_size", _number(given, "q_group_size", 128))
        return bits if group <= 0 else bits + (16 + bits) / group
    other = {"mxfp4": _mxfp4, "bitsandbytes": _bitsandbytes, "modelopt": _modelopt}
    return other.get(method, _compressed)(given)


def _mxfp4(given: Mapping[str, object]) -> float:
    return 4 + 8 / 32


def _bitsandbytes(given: Mapping[str, object]) -> float:
    if not given.get("load_in_4bit"):
        return 8
    return 4 + 8 / 64 + 32 / (64 * 256) if given.get("bnb_4bit_use_double_quant") else 4 + 32 / 64


def _modelopt(given: Mapping[str, object]) -> float:
    nested = given.get("quantization")
    algorithm = str(
        given.get("quant_algo") or (nested.get("quant_algo") if isinstance(nested, Mapping) else "")
    ).upper()
    if algorithm == "FP8":
        return 8
    if algorithm in ("NVFP4", "NVFP4_AWQ", "W4A8_NVFP4_FP8", "W4A16_NVFP4"):
        group = 16
        return 4 + 8 / group
    raise KvsimError(f"quantization_config.quant_algo must be one of FP8, NVFP4, got {algorithm!r}")


def _compressed(given: Mapping[str, object]) -> float:
    """compressed-tensors: the widest of its groups, usually the only one."""
    groups = given["config_groups"]
    widest = 0.0
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if not isinstance(weights, Mapping):
            continue
        bits, kind = _number(weights, "num_bits", 0), str(weights.get("type"))
        if bits not in (4, 8) or kind not in ("int", "float"):
            raise KvsimError(
                f"quantization_config.config_groups must hold weights of 4 or 8 bits, int or float, "
                f"got {bits} bits of type {kind}"
            )
        size = _number(weights, "group_size", 0)
        scale = 8 if kind == "float" and bits == 4 else 16  # fp4 scales take a byte
        zero = 0 if weights.get("symmetric", True) else bits
        widest = max(widest, bits + (scale + zero) / size if size > 0 else float(bits))
    if not widest:
        raise KvsimError("quantization_config.config_groups names no weights")
    return widest


def _is_quantized(method: str, given: Mapping[str, object], module: Module) -> bool:
    if module.role not in ("linear", "experts", "head"):
        return False
    if module.role == "head" and not given.get("lm_head"):
        return False
    if method == "mxfp4" and module.role != "experts":
        return False
    return not any(_excludes(pattern, module.name) for pattern in _exclusions(given))


def _exclusions(given: Mapping[str, object]) -> Iterable[str]:
    for key in EXCLUSIONS:
        patterns = given.get(key)
        if isinstance(patterns, Mapping):  # GPTQModel: "-:pattern" excludes
            patterns = [f"re:{key[2:]}" for key in patterns if str(key).startswith("-:")]
        if isinstance(patterns, list):
            yield from map(str, patterns)


def _excludes(pattern: str, name: str) -> bool:
    """Whether a pattern (regular expression, wildcard, or part of the name) matches this module."""
    if pattern.startswith("re:"):
        return re.search(pattern[3:], name) is not None
    if "*" in pattern:
        return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
    parts, names = pattern.strip(".").split("."), name.split(".")
    return any(names[at : at + len(parts)] == parts for at in range(len(names)))


def _number(given: Mapping[str, object], key: str, default: float) -> float:
    value = given.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise KvsimError(f"quantization_config.{key} must be a number, got {value!r}")
    return value
