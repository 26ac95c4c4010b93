"""Checks that a profile is usable: every number of its parts, and every axis of their tables.

A profile may come from someone else's file or from a config.json. The cost model reads tables along their
axes during a run; anything that would fail there is refused before the run.
"""

from collections.abc import Mapping, Sequence
from math import isfinite, log2
from typing import Any

KINDS = ("calibrated", "elsewhere", "rehearsal")
PARTS = ("decode", "prefill", "product", "sampling", "elementwise", "kv_write", "block_copy")
"""Parts without which, in some precision, no step can be composed; other parts may be missing."""

AXES: dict[str, tuple[str, ...]] = {
    "decode": ("sequence_heads", "context_tokens", "block_size", "group", "head_dim", "element_bytes"),
    "latent": ("heads", "sequences", "context_tokens", "width", "block_size", "element_bytes"),
    "prefill": ("tokens", "prefix_tokens", "sequences", "block_size", "group", "head_dim", "element_bytes"),
    "product": ("tokens", "inputs", "outputs"),
    "lm_head": ("tokens", "inputs", "outputs"),
    "experts": ("skew", "shared", "local", "matrix", "rows"),
    "all_reduce": ("gpus", "bytes"),
}
"""Part -> the axes its tables may have, in any precision (`product_fp8`); all other parts have `bytes`."""

MAY_BE_ZERO = ("multiprocessors", "whole_waves", "least_wave", "all_rows")
MOST = 1e30
"""No real byte count, rate or duration comes near this; products of larger numbers would overflow."""


def check_profile(profile: Mapping[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError unless step times can be computed from the profile."""
    if profile["kind"] not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {profile['kind']!r}")
    parts = profile["parts"]
    lacking = [name for name in PARTS if not any(_is(part, name) for part in parts)]
    if lacking:
        raise ValueError(f"it lacks the parts {', '.join(lacking)}")
    for name, part in parts.items():
        _check_part(name, part)
    launch = profile["launch"]
    _positive(launch["eager_s"], launch["replay_s"], launch.get("cut_s", 0.0), least=0.0)


def _check_part(name: str, part: Mapping[str, Any]) -> None:
    form = part["form"]
    _positive(form["t0_s"], form.get("merge_s", 0.0), least=0.0)
    _positive(form["bandwidth_bytes_per_s"], *([] if form["work_per_s"] is None else [form["work_per_s"]]))
    if form["p"] != "max":
        _positive(form["p"], least=1.0)
    for low, high in part["range"].values():
        _positive(low, high, least=0.0)
    known, seen = _axes(name), set[str]()
    for table in part["tables"]:
        for axis in table["axes"]:
            if axis["name"] not in known or axis["name"] in seen:
                raise ValueError(f"part {name}: each axis must be one of {', '.join(known)}, and there once")
            seen.add(axis["name"])
        _check_ratio(table["axes"], table["ratio"])
    for constant, value in part.get("constants", {}).items():
        if constant == "axes":
            if not set(value) <= set(known):
                raise ValueError(f"part {name}: axes must be some of {', '.join(known)}, got {value}")
            continue
        for each in value.values() if isinstance(value, Mapping) else [value]:
            _positive(each, least=0.0 if constant in MAY_BE_ZERO else None)


def _axes(part: str) -> tuple[str, ...]:
    """The axes that the tables of a part may have; `product_fp8` is a `product`."""
    of_part = [axes for name, axes in AXES.items() if _is(part, name)]
    return of_part[0] if of_part else ("bytes",)


def _is(part: str, name: str) -> bool:
    """Whether a part has this name, in any precision."""
    return part == name or part.startswith(f"{name}_")


def _check_ratio(axes: Sequence[Mapping[str, Any]], ratio: Any) -> None:  # noqa: ANN401 - nested lists
    if not axes:
        _positive(ratio)
        return
    values, offset = axes[0]["values"], axes[0]["offset"]
    _positive(*values, least=0.0)
    _positive(offset, least=0.0)
    logs = [log2(value + offset) for value in values]  # tables are linear in these
    if not values or sorted(set(logs)) != logs:
        raise ValueError(f"the values of axis {axes[0]['name']} must rise, got {values}")
    if len(ratio) != len(values):
        raise ValueError(f"axis {axes[0]['name']} has {len(values)} values and {len(ratio)} ratios")
    for row in ratio:
        _check_ratio(axes[1:], row)


def _positive(*numbers: float, least: float | None = None) -> None:
    for number in numbers:
        enough = number >= least if least is not None else number > 0
        if isinstance(number, bool) or not (enough and isfinite(number) and number <= MOST):
            raise ValueError(f"{number!r} where a positive number must be")
