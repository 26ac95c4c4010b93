"""Finds models and GPUs by name, in models.toml, model_configs.toml and gpus.toml, or in a config.json.

Names match regardless of case, and "_", " " and "-" are the same: `A100_40GB` is `a100-40gb`. Lookup order:
the table; a path to a config.json, or to a folder that holds one; a model's name on the Hugging Face hub,
with or without its owner; a quantized checkpoint of one of these.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.models.huggingface import model_of, read_model
from kvsim.sim.models.own_gpu import GIB, gpu_of
from kvsim.sim.models.quantization import quantized
from kvsim.sim.models.spec import GpuSpec, ModelSpec

HUB = "https://huggingface.co/"
QUANTIZED = {
    "fp8": ("-fp8", "-fp8-dynamic", "-fp8-block"),
    "awq": ("-awq", "-awq-int4"),
    "gptq": ("-gptq", "-gptq-int4", "-quantized.w4a16"),
    "nvfp4": ("-nvfp4", "-fp4"),
}
"""Quantization -> suffixes in the names of such checkpoints."""

__all__ = ["GIB", "gpu_named", "gpu_names", "hub_names", "model_named", "model_names"]


def model_named(name_or_path: str) -> ModelSpec:
    """The built-in model of this name, the model of the config.json at this path, or a model of the hub."""
    name = _normal(name_or_path)
    if name in model_names():
        return _built_in(name)
    path = Path(name_or_path).expanduser()
    if name_or_path.strip() and os.path.exists(path):  # path.exists() raises for names that are too long
        return read_model(path)
    if name in _hub():
        return _hub()[name]
    checkpoint = _quantized_on_hub(name_or_path)
    if checkpoint is not None:
        return checkpoint
    if name_or_path.endswith(".json"):
        return read_model(path)  # raises the reason
    if "/" in name_or_path:
        raise _unknown_on_hub(name_or_path)
    raise unknown("model", name_or_path, model_names())


def hub_names() -> list[str]:
    """The Hugging Face hub names, with owners, that find a built-in model."""
    return list(dict.fromkeys(str(model.hub_name) for model in _hub().values()))


def gpu_named(name: str) -> GpuSpec:
    """The built-in GPU of this name."""
    found = _gpus().get(_normal(name))
    if found is None:
        raise unknown("gpu", name, gpu_names())
    return found


def model_names() -> list[str]:
    """Names of the built-in models, in the order of the table."""
    return [*_table("models.toml"), *_table("model_configs.toml")]


def gpu_names() -> list[str]:
    """Names of the built-in GPUs, in the order of the table."""
    return list(_gpus())


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


@cache
def _built_in(name: str) -> ModelSpec:
    """A model of the tables: from its own fields, or from its config.json and published totals."""
    plain = _table("models.toml").get(name)
    if plain is not None:
        specs = {field.name for field in fields(ModelSpec)}
        return ModelSpec(name=name, **{key: plain[key] for key in plain if key in specs})
    entry = _table("model_configs.toml")[name]
    published = {key: entry[key] for key in ("parameters", "active_parameters") if key in entry}
    return replace(model_of(entry, folder=name), name=name, source=entry["source"], **published)


@cache
def _table(file: str) -> Mapping[str, Any]:
    return tomllib.loads(files("kvsim.sim.models").joinpath(file).read_text(encoding="utf-8"))


@cache
def _hub() -> Mapping[str, ModelSpec]:
    """Models by normalized hub name; also without the owner, unless another model has that name."""
    found: dict[str, ModelSpec] = {}
    for name, entry in [*_table("models.toml").items(), *_table("model_configs.toml").items()]:
        for hub_name in dict.fromkeys([*_published_as(entry["source"]), *entry.get("hub", ())]):
            longest = entry.get("max_model_len_of", {}).get(hub_name, _built_in(name).max_model_len)
            spec = replace(_built_in(name), hub_name=hub_name, max_model_len=longest)
            found[_normal(hub_name)] = spec
            found.setdefault(_normal(hub_name).partition("/")[2], spec)
    return found


def _quantized_on_hub(name: str) -> ModelSpec | None:
    """The base model of a quantized checkpoint by any publisher; None for other names."""
    plain = _normal(name)
    for method, ends in QUANTIZED.items():
        for end in ends:
            base = plain.removesuffix(end)
            found = _hub().get(base) or _hub().get(base.rpartition("/")[2])
            if base != plain and found is not None:
                return replace(quantized(found, method), hub_name=name)
    return None


def _published_as(source: str) -> Iterator[str]:
    """The hub name in the URL of a config.json."""
    if source.startswith(HUB):
        yield source.removeprefix(HUB).partition(" ")[0].rstrip(",")


def _unknown_on_hub(name: str) -> KvsimError:
    """An error that suggests the nearest hub names, and the option that always works."""
    from difflib import get_close_matches

    near = get_close_matches(_normal(name), [known for known in _hub() if "/" in known], n=3, cutoff=0.6)
    meant = " or ".join(repr(str(_hub()[each].hub_name)) for each in near)
    hint = f"; did you mean {meant}?" if near else ""
    return KvsimError(
        f"model {name!r} is neither built in nor a file{hint} (see: sim models; of any other model, download "
        "its config.json from the hub and give that file)"
    )


@cache
def _gpus() -> Mapping[str, GpuSpec]:
    return {name: gpu_of(entry, name, "") for name, entry in _table("gpus.toml").items()}
