"""`python -m kernels.calibration --out PROFILE [--quick] [--interpret] [--journal FILE] [--fresh]`."""

import argparse
import sys
from pathlib import Path

from kernels.calibration.calibrate import Progress, calibrate
from kernels.calibration.errors import CalibrationError
from kernels.calibration.plan import plan
from kernels.calibration.profile import write_profile


def show(progress: Progress) -> None:
    """One line, written over the last one; in a file, a line for every part."""
    share = progress.done / max(progress.points, 1)
    text = f"{share:4.0%}  {progress.part or 'done':12} about {progress.left_s:.0f} s left"
    if sys.stderr.isatty():
        print(f"\r{text:60}", end="" if progress.part else "\n", file=sys.stderr, flush=True)
    elif progress.part != show.part:
        print(text, file=sys.stderr, flush=True)
    show.part = progress.part


show.part = None


def main() -> int:
    """Measure (or rehearse), write the profile, and say what its errors are."""
    parser = argparse.ArgumentParser(prog="python -m kernels.calibration", description="Calibrate a GPU.")
    parser.add_argument("--out", type=Path, required=True, help="the profile to write, a JSON file")
    parser.add_argument("--quick", action="store_true", help="fewer points, under a minute")
    parser.add_argument("--interpret", action="store_true", help="rehearse on the CPU: no measurement")
    parser.add_argument("--journal", type=Path, help="what has been measured; OUT.journal when not given")
    parser.add_argument("--fresh", action="store_true", help="forget the journal")
    parser.add_argument("--name", help="of the profile")
    options = parser.parse_args()
    journal = options.journal or options.out.with_name(options.out.name + ".journal")
    try:
        planned = plan(options.quick, options.interpret)
        print(
            f"{planned.device.name}: {len(planned.points)} points, about {planned.estimated_s():.0f} s",
            file=sys.stderr,
        )
        profile = calibrate(planned, journal, name=options.name, fresh=options.fresh, progress=show)
        write_profile(profile, options.out, journal)
    except (CalibrationError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nstopped: the same command goes on from {journal}", file=sys.stderr)
        return 130
    for name, part in profile["parts"].items():
        held_out = part["error"]["held_out"]
        text = f"{held_out['mean']:.1%} mean, {held_out['worst']:.1%} worst" if held_out else "none"
        print(f"{name:12} {len(part['points']):4} points, error of held-out ones: {text}")
    if error := profile["composed"]["error"]:
        text = f"{error['mean']:.1%} mean, {error['worst']:.1%} worst"
        print(f"{'composed':12} {error['points']:4} steps, error: {text}")
    if profile["refused"]:
        print(f"{len(profile['refused'])} points refused, the first: {profile['refused'][0]['reason']}")
    if profile["kind"] == "rehearsal":
        print("a rehearsal on the CPU: none of these times is a measurement")
    return 0


if __name__ == "__main__":
    sys.exit(main())
