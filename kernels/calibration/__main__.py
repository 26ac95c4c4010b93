"""`python -m kvsim.kernels.calibration --out PROFILE [--quick] [--interpret] [--journal FILE] [--fresh]`."""

import argparse
import sys
from pathlib import Path

from kvsim.kernels.calibration.calibrate import Progress, begin, finish
from kvsim.kernels.calibration.earlier import kept_as, write_beside
from kvsim.kernels.calibration.errors import CalibrationError
from kvsim.kernels.calibration.overview import left_out, overview
from kvsim.kernels.calibration.plan import plan
from kvsim.kernels.calibration.soundness import exit_code_of
from kvsim.kernels.calibration.stopping import exit_code, terminable


def show(progress: Progress) -> None:
    """Print progress on one line that is overwritten; in a file, a line per part."""
    share = progress.done / max(progress.points, 1)
    text = f"{share:4.0%}  {progress.part or 'done':12} about {progress.left_s:.0f} s left"
    if sys.stderr.isatty():
        print(f"\r{text:60}", end="" if progress.part else "\n", file=sys.stderr, flush=True)
    elif progress.part != show.part:
        print(text, file=sys.stderr, flush=True)
    show.part = progress.part


show.part = None


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m kvsim.kernels.calibration", description="Calibrate a GPU."
    )
    parser.add_argument("--out", type=Path, required=True, help="the profile to write, a JSON file")
    parser.add_argument("--quick", action="store_true", help="fewer points, about a minute")
    parser.add_argument("--interpret", action="store_true", help="rehearse on the CPU: no measurement")
    parser.add_argument("--journal", type=Path, help="what has been measured; OUT.journal when not given")
    parser.add_argument("--fresh", action="store_true", help="forget the journal")
    parser.add_argument("--name", help="of the profile")
    return parser.parse_args()


def main() -> int:
    """Measure (or rehearse), write the profile, and print its errors."""
    chosen = options()
    path = chosen.journal or chosen.out.with_name(chosen.out.name + ".journal")
    journal = None
    try:
        with terminable():
            planned = plan(chosen.quick, chosen.interpret)
            kept_as(chosen.out)  # raises before anything is measured
            journal = begin(planned, path, fresh=chosen.fresh)
            print(f"{planned.device.name}, measured so far: {len(journal.samples)}", file=sys.stderr)
            for part in overview(planned, journal):
                print(f"{part.part:12} {part.points:4} points, about {part.left_s:3.0f} s", file=sys.stderr)
            for part, why in left_out(planned).items():
                print(f"{part:12} left out: {why}", file=sys.stderr)
            profile = finish(planned, journal, name=chosen.name, progress=show)
            kept = write_beside(profile, chosen.out, path)
    except (CalibrationError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        measured = len(journal.samples) if journal else 0
        print(f"\nstopped: {measured} points are kept in {path}; the same command continues", file=sys.stderr)
        return exit_code(stop)
    if kept is not None:
        print(f"the profile that was there is kept as {kept}")
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
    for fault in profile["measured"]["faults"]:
        print(f"faulty: {fault}")
    return exit_code_of(profile["measured"])


if __name__ == "__main__":
    sys.exit(main())
