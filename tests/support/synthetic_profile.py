"""A complete profile of the synthetic GPU of synthetic_gpu.py, with every part: no measurement."""

from datetime import UTC, datetime

CLOCKS = {
    "driver_version": "580.1",
    "clocks.sm": "1980 MHz",
    "power.draw": "420.5 W",
    "temperature.gpu": "55",
}


def synthetic_profile(path, quick=False):
    """Calibrate it, and write the result."""
    from kvsim.kernels.calibration.calibrate import calibrate
    from kvsim.kernels.calibration.grid import points
    from kvsim.kernels.calibration.plan import Plan
    from kvsim.kernels.calibration.profile import write_profile
    from support.synthetic_gpu import H200, SyntheticGpu

    planned = Plan(H200, quick, tuple(points(H200, quick)))
    found = calibrate(
        planned,
        stopwatch=SyntheticGpu(),
        read_clocks=lambda: CLOCKS,
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
    )
    name = {"name": "synthetic", "kind": "rehearsal", "gpu": None}
    device = found["device"] | {"name": "Synthetic GPU"}
    write_profile(found | name | {"device": device}, path)
    return path
