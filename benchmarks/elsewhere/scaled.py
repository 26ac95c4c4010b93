"""Kernels that a GPU's own tables lack, as another GPU runs the same ones: scaled by both datasheets.

    bandwidth, rate    x here / there
    start, ratios      as there

An A100 serves experts with weights of 4 bits by Marlin, as an L40S does, whose tables have it. Its own
16-bit experts are Triton's, at an eighth of its peak: they say nothing about Marlin.
"""

from collections.abc import Mapping

from tables import Gpu

TAKEN = {"a100-80gb": ("l40s", ("experts_int4_wo", "experts_w4a16_mxfp4"))}
"""GPU -> from which, and which parts."""


def scaled(part: Mapping[str, object], there: Gpu, here: Gpu) -> dict[str, object]:
    """A part of another GPU, as this one would take for it; it says whose it is, and has no errors."""
    form = part["form"]
    moved = {
        "bandwidth_bytes_per_s": form["bandwidth_bytes_per_s"] * here.gb_per_s / there.gb_per_s,
        "work_per_s": form["work_per_s"] * here.tflops[2] / there.tflops[2],
    }
    error = {"fitted": None, "held_out": None, "new_shapes": None}
    return {**part, "form": {**form, **moved}, "scaled_from": there.name, "error": error}
