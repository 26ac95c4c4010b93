"""Take kernels that a GPU's tables lack from another GPU that runs them, scaled by both datasheets.

    bandwidth, rate    x here / there
    start, ratios      unchanged

An A100 serves experts with 4-bit weights with Marlin, like an L40S, whose tables have it. The A100's own
16-bit experts use Triton, at an eighth of its peak, so they say nothing about Marlin.
"""

from collections.abc import Mapping

from tables import Gpu

TAKEN = {"a100-80gb": ("l40s", ("experts_int4_wo", "experts_w4a16_mxfp4"))}
"""GPU -> source GPU, and the parts taken from it."""


def scaled(part: Mapping[str, object], there: Gpu, here: Gpu) -> dict[str, object]:
    """A part of another GPU, scaled to this one; it states its origin, and has no errors."""
    form = part["form"]
    moved = {
        "bandwidth_bytes_per_s": form["bandwidth_bytes_per_s"] * here.gb_per_s / there.gb_per_s,
        "work_per_s": form["work_per_s"] * here.tflops[2] / there.tflops[2],
    }
    error = {"fitted": None, "held_out": None, "new_shapes": None}
    return {**part, "form": {**form, **moved}, "scaled_from": there.name, "error": error}
