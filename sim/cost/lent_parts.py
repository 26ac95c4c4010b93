"""What a calibrated profile lacks, from the tables of its GPU that ship.

    lent    all-reduces, if it was made on one GPU; products and experts in a precision that it does not have
    kept    everything that it has. Its own 8-bit experts, with one scale, also stand for those with scales by
            block. Attention is never lent: its kernels are launched in other ways

A lent part is of a vLLM release on another card of the same name, which is closer than the datasheet
(docs/cost.md has both errors). All its time counts as extrapolated, under a name that says so.
"""

from collections.abc import Mapping
from typing import Any

LENT = "lent_by"
"""Key of a part: the engine whose kernels were measured, "vLLM 0.24.0"."""
KINDS = ("product", "experts", "all_reduce")
OWN_ENOUGH = {"experts_fp8_block": "experts_fp8"}
"""A part that is not lent -> the profile's own one that takes its place."""


def with_lent(own: Mapping[str, Any], lender: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """The parts of a profile, and those of the lender that it lacks."""
    lent = {
        name: {**part, LENT: engine}
        for name, part in lender.items()
        if name.startswith(KINDS) and name not in own and OWN_ENOUGH.get(name) not in own
    }
    return {**own, **lent}


def part_words(name: str) -> str:
    """`experts w4a16 mxfp4`, `all-reduce`."""
    return "all-reduce" if name == "all_reduce" else name.replace("_", " ")


def lent_words(parts: Mapping[str, Any]) -> str:
    """`experts w4a16 mxfp4 and all-reduce of vLLM 0.24.0, measured elsewhere`; "" if nothing is lent."""
    lent = {part_words(name): part[LENT] for name, part in parts.items() if LENT in part}
    if not lent:
        return ""
    return f"{' and '.join(lent)} of {next(iter(lent.values()))}, measured elsewhere"
