"""Run `sim calibrate`: plan, measure with progress shown, keep every measurement whatever happens."""

import shlex
from pathlib import Path

from kvsim.kernels.calibration.calibrate import begin, finish
from kvsim.kernels.calibration.earlier import kept_as, write_beside
from kvsim.kernels.calibration.errors import CalibrationError, NoGpuError
from kvsim.kernels.calibration.overview import held_by_others, left_out, overview
from kvsim.kernels.calibration.plan import plan
from kvsim.kernels.calibration.soundness import exit_code_of
from kvsim.kernels.calibration.stopping import exit_code, terminable
from kvsim.reports.calibration.profile import fit_of
from kvsim.reports.calibration.watch import outcome, plan_report, watched
from kvsim.reports.listing import show
from kvsim.sim.cost.profile_files import read_profile
from kvsim.sim.cost.profile_place import called_by, new_profile
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.stopping import Stopped


def calibrated(out: Path | None, name: str | None, *, quick: bool, interpret: bool, fresh: bool) -> None:
    """Measure this machine's GPU; print the result and what to do next."""
    try:
        target, kept = measured(out, name, quick=quick, interpret=interpret, fresh=fresh)
    except NoGpuError as error:
        raise KvsimError(
            f"{error}: use a datasheet by name, as in sim run --gpu h200, or rehearse with --interpret"
        ) from error
    except CalibrationError as error:
        raise KvsimError(str(error)) from error
    found = read_profile(target)
    show(outcome(fit_of(found)))
    called = shlex.quote(called_by(found))
    for line in (
        f"written to {target}",
        *([f"the earlier profile is kept as {kept}"] if kept is not None else []),
        f"next: sim calibrate show {called}",
        f"      sim run --gpu {called}",
    ):
        print(line)
    if found.faults:
        said = "\n".join(f"faulty: {fault}" for fault in found.faults)
        raise Stopped(said, exit_code_of(found.content["measured"]))


def measured(
    out: Path | None, name: str | None, *, quick: bool, interpret: bool, fresh: bool
) -> tuple[Path, Path | None]:
    """Calibrate with progress shown: returns the profile's file, and where an earlier one is kept."""
    journal = None
    try:
        with terminable():
            planned = plan(quick, interpret)
            gpu = planned.sheet.gpu if planned.sheet else None
            target = new_profile(planned.device.name, gpu, out, name, quick=quick, rehearsal=interpret)
            earlier, path = kept_as(target), target.with_name(f"{target.name}.journal")
            journal = begin(planned, path, fresh=fresh)
            facts, since = journal.head["device"], str(journal.head["date"])[:10]
            parts, held = overview(planned, journal), held_by_others(planned)
            shown = plan_report(facts, parts, left_out(planned), since, held)
            remark = f"It will be written to {target}."
            if earlier is not None:
                remark += f" The profile that is there is kept as {earlier.name}."
            show(shown, f"{remark} Ctrl-C keeps what is measured.\n", stderr=True)
            with watched(len(planned.points)) as heard:
                profile = finish(
                    planned,
                    journal,
                    name=name or target.stem,
                    progress=lambda at: heard(at.part, at.done, at.left_s),
                )
            return target, write_beside(profile, target, path)
    except KeyboardInterrupt as stop:
        if journal is None:
            raise
        code = getattr(stop, "exit_code", None) or exit_code(stop)
        kept = f"{len(journal.samples):,} of {len(planned.points):,} points are measured and kept"
        raise Stopped(f"interrupted: {kept}; the same command continues", code) from None
