"""Whether enough was measured for a profile, and the faults of a finished profile.

A part is complete if at most a tenth of its points that fit the device failed or were refused. A profile
needs all parts except the OPTIONAL ones. A profile with faults is written, but runs prefer one without.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kvsim.kernels.calibration.drift import disturbances
from kvsim.kernels.calibration.errors import IncompleteError
from kvsim.kernels.calibration.journal import Journal
from kvsim.kernels.calibration.plan import Plan

OPTIONAL = ("latent", "experts", "experts_fp8", "all_reduce", "to_host", "to_gpu")
"""Parts that steps can do without: few models have latents, many no experts, one GPU needs no all-reduce, and
engines that recompute do not swap."""

MISSING_SHARE = 0.1
COMPOSED_ERROR = 0.05
"""A larger mean error of composed steps means that the kernels, the form or the device is wrong."""

FAULTY_EXIT_CODE, DISTURBED_EXIT_CODE = 3, 4
"""For a calibration that wrote a profile with faults; the second if the card changed meanwhile."""


def expect_complete(planned: Plan, journal: Journal, refused: Sequence[Mapping[str, Any]]) -> set[str]:
    """Raise IncompleteError if a part lacks too many of the points that fit the device.

    Returns the optional parts that do; they are left out.
    """
    fits = [point for point in planned.points if journal.samples[point.key].fits]
    gridded = {point.part for point in fits if point.role == "grid" or point.part == "composed"}
    lacking = set()
    for part in dict.fromkeys(point.part for point in planned.points):
        wanted = sum(point.part == part for point in fits) if part in gridded else 0
        reasons = [one["reason"] for one in refused if one["part"] == part and one["fits"]]
        most = 0 if part in {"ceilings", "launch"} else MISSING_SHARE * wanted
        if part in OPTIONAL and len(reasons) > most:
            lacking.add(part)
        elif part not in OPTIONAL and (wanted == 0 or len(reasons) > most):
            why = f", the first: {reasons[0]}" if reasons else ", as none fits the memory"
            raise IncompleteError(
                f"no profile without the part {part}: {len(reasons) or 'all'} of its {wanted} points are "
                f"missing{why}. What was measured is kept: the same command tries the others again"
            )
    return lacking


def faults_of(profile: Mapping[str, Any]) -> list[str]:
    """The faults of a profile, in words; a rehearsal has none."""
    if profile["kind"] == "rehearsal":
        return []
    found, error = disturbances(profile["measured"]), profile["composed"]["error"]
    if error is not None and error["mean"] > COMPOSED_ERROR:
        found.append(f"composed steps are {error['mean']:.1%} off on average, more than {COMPOSED_ERROR:.0%}")
    return found


def exit_code_of(measured: Mapping[str, Any]) -> int:
    """The exit code for a calibration whose profile has this `measured`."""
    if not measured["faults"]:
        return 0
    return DISTURBED_EXIT_CODE if disturbances(measured) else FAULTY_EXIT_CODE
