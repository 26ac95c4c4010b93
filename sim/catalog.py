"""Names to specs: the built-in tables (models.toml, model_configs.toml, gpus.toml), or a model's config.json.

Names match whatever their case, and "_", " " and "-" are the same: `A100_40GB` is `a100-40gb`. The table
goes first; a path to a config.json, or to a folder that holds one, comes second.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvsim.sim.config import GpuSpec, ModelSpec
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.huggingface import model_of, read_model

GIB = 2**30


def model_named(name_or_path: str) -> ModelSpec:
    """The built-in model of that name, else the model of the config.json at that path."""
    models, name = _models(), _normal(name_or_path)
    if name in models:
        return models[name]
    path = Path(name_or_path).expanduser()
    if name_or_path.strip() and path.exists():
        return read_model(path)
    if name_or_path.endswith(".json"):
        raise KvsimError(f"model {name_or_path!r}: there is no such file")
    raise unknown("model", name_or_path, model_names())


def gpu_named(name: str) -> GpuSpec:
    """The built-in GPU of that name."""
    found = _gpus().get(_normal(name))
    if found is None:
        raise unknown("gpu", name, gpu_names())
    return found


def model_names() -> list[str]:
    """Names of the built-in models, in the order of the table."""
    return list(_models())


def gpu_names() -> list[str]:
    """Names of the built-in GPUs, in the order of the table."""
    return list(_gpus())


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


@cache
def _models() -> Mapping[str, ModelSpec]:
    plain = {name: ModelSpec(name=name, **entry) for name, entry in _table("models.toml").items()}
    return plain | {name: _from_config(name, entry) for name, entry in _table("model_configs.toml").items()}


def _from_config(name: str, entry: Mapping[str, Any]) -> ModelSpec:
    """A model from the fields of its published config.json, with published totals where known."""
    published = {key: entry[key] for key in ("parameters", "active_parameters") if key in entry}
    return replace(model_of(entry, folder=name), name=name, source=entry["source"], **published)


def _table(file: str) -> Mapping[str, Any]:
    return tomllib.loads(files("kvsim.sim").joinpath(file).read_text(encoding="utf-8"))


@cache
def _gpus() -> Mapping[str, GpuSpec]:
    return {
        name: GpuSpec(
            name=name,
            memory_bytes=entry["memory_gib"] * GIB,
            bandwidth_bytes_per_s=entry["bandwidth_gb_per_s"] * 1e9,
            flops_per_s=entry["tflops"] * 1e12,
            pcie_bytes_per_s=entry["pcie_gb_per_s"] * 1e9,
            link_bytes_per_s=entry["link_gb_per_s"] * 1e9 if "link_gb_per_s" in entry else None,
            source=entry["source"],
        )
        for name, entry in _table("gpus.toml").items()
    }
