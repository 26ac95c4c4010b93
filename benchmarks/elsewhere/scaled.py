"""Kernels that a GPU's own tables lack, taken from another GPU that runs them: scaled by both datasheets.

    bandwidth, rate    x here / there
    start, ratios      unchanged

An A100 serves experts with 4-bit weights by Marlin, like an L40S, whose tables have it. Its own 16-bit
experts are Triton's, at an eighth of its peak: they say nothing about Marlin.
"""

from collections.abc import Mapping

from tables import Gpu

TAKEN = {"a100-80gb": ("l40s", ("experts_int4_wo", "experts_w4a16_mxfp4"))}
"""GPU -> source GPU, and which parts."""


def scaled(part: Mapping[str, object], there: Gpu, here: Gpu) -> dict[str, object]:
    """A part of another GPU, scaled to this one; it names its origin, and has no errors."""
    form = part["form"]
    moved = {
        "bandwidth_bytes_per_s": form["bandwidth_bytes_per_s"] * here.gb_per_s / there.gb_per_s,
        "work_per_s": form["work_per_s"] * here.tflops[2] / there.tflops[2],
    }
    error = {"fitted": None, "held_out": None, "new_shapes": None}
    return {**part, "form": {**form, **moved}, "scaled_from": there.name, "error": error}
