"""The part of a profile that a deployment needs: the parts it uses, and the table entries around its sizes.

A shipped profile holds tables for any model. A run keeps in config.json only what it needs: along each axis
that the model fixes (heads, matrices, experts, GPUs) only the values next to its own. All ratios stay the
same to the last bit.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvsim.sim.cost.calibrated.layer import dense_precision, expert_precision, layer_of
from kvsim.sim.cost.calibrated.measured import BY_SIZE, REDUCE, in_precision
from kvsim.sim.cost.collective import group_of
from kvsim.sim.cost.lent_parts import LENT
from kvsim.sim.cost.options import CalibratedOptions
from kvsim.sim.cost.profile_files import Profile
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.option import taken

Values = Mapping[str, Iterable[float]]
"""Axis -> the values at which its table is read."""


def needed(profile: Profile, deployment: Deployment, draft: Deployment | None = None) -> Profile:
    """The part of the profile that the deployment and its draft need.

    A profile of `sim calibrate` keeps all parts of its own.
    """
    parts = profile["parts"]
    own = {name: part for name, part in parts.items() if LENT not in part}
    if profile["kind"] == "elsewhere":
        own = {}
    elif len(own) == len(parts):
        return profile
    used = {name: values for name, values in _used(parts, deployment).items() if name in parts}
    if draft is not None:
        for name, values in _used(parts, draft).items():
            if name in parts:
                before = used.get(name, {})
                used[name] = {
                    axis: [*before.get(axis, ()), *values.get(axis, ())] for axis in {**before, **values}
                }
    around = {name: _around(parts[name], values) for name, values in used.items() if name not in own}
    return {**profile, "parts": own | around}


def _used(parts: Mapping[str, Any], deployment: Deployment) -> dict[str, Values]:
    """Part -> the values at which its tables are read, along the axes that do not change in a run."""
    model, tp = deployment.served_model, deployment.tensor_parallel_size
    heads, kv_heads = model.heads // tp, -(-model.kv_heads // tp)
    attention = {"head_dim": [model.head_dim], "group": [heads // kv_heads]}
    layer = layer_of(model, tp, deployment.enable_expert_parallel, deployment.data_parallel_size)
    shapes = list(layer.products) if layer else []
    head = model.hidden_size, -(-model.vocab_size // tp)
    dense = in_precision(parts, "product", *dense_precision(model).parts)
    element = "_fp8" if (model.kv_dtype_bytes or model.dtype_bytes) == 1 else ""
    plain = [head, layer.router] if layer and layer.router else [head]
    matrices = {"product": plain, dense: [*plain, *shapes] if dense == "product" else shapes}
    used: dict[str, Values] = {
        name: {"inputs": [one[0] for one in some], "outputs": [one[1] for one in some]}
        for name, some in matrices.items()
    }
    if "lm_head" in parts:
        used["lm_head"] = {"inputs": [head[0]], "outputs": [head[1]]}
    used |= {in_precision(parts, name, element): attention for name in ("decode", "prefill")}
    used |= {name: attention for name in ("decode", "prefill")} if not element else {}
    used |= {name: {} for name in BY_SIZE if name != REDUCE}
    groups = group_of(deployment.gpu, tp), group_of(deployment.gpu, deployment.data_parallel_size, tp)
    if reducing := [group.gpus for group in groups if group.gpus > 1]:
        used[REDUCE] = {"gpus": reducing}
    if layer and layer.experts:
        experts = layer.experts
        precision = expert_precision(model)
        used[in_precision(parts, "experts", *precision.parts, *precision.like)] = {
            "skew": [taken(CalibratedOptions, deployment.options).expert_skew],
            "shared": [experts.shared],
            "local": [experts.local],
            "matrix": [experts.hidden * experts.inner],
        }  # fmt: skip
    return used


def _around(part: Mapping[str, Any], values: Values) -> Mapping[str, Any]:
    """A part whose tables keep only the neighbours of `values` along these axes."""
    tables = []
    for table in part["tables"]:
        kept = [_next_to(axis["values"], values.get(axis["name"])) for axis in table["axes"]]
        axes = [
            {**axis, "values": [axis["values"][i] for i in some]}
            for axis, some in zip(table["axes"], kept, strict=True)
        ]
        tables.append({"axes": axes, "ratio": _picked(table["ratio"], kept)})
    return {**part, "tables": tables}


def _next_to(axis: Sequence[float], values: Iterable[float] | None) -> list[int]:
    """Indices of the values' neighbours on the axis: at, below and above; all of them without values."""
    if values is None:
        return list(range(len(axis)))
    found = set()
    for value in values:
        after = bisect_right(axis, value)
        found |= {max(after - 1, 0), min(after, len(axis) - 1)}
    return sorted(found)


def _picked(ratio: Any, kept: Sequence[Sequence[int]]) -> Any:  # noqa: ANN401 - nested lists
    if not kept:
        return ratio
    return [_picked(ratio[i], kept[1:]) for i in kept[0]]
