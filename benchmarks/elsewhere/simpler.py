"""Would a simpler fit do? How errors on held-out rows change with fewer norms, or with one start.

    python benchmarks/elsewhere ../shared/data/kernel_tables --simpler      about 20 CPU-minutes for all GPUs

Each part is fitted with every norm alone; from a set of norms the fit takes the one with the least squares.
The output lists the mean errors, of rows and of new shapes, that grow by more than 0.1 point compared with
six norms. Of 167:

    one start                5, by up to 5.68: the sum of squares has several minima
    norms 1, 3              17, by up to 1.86
    norms 1, 1.5            10, by up to 0.35
    norms 1, max            31, by up to 1.86
    norms 1, 1.5, 3, max     4, by up to 0.30
    norms 1, 1.5, 2, 3       0

None changes the mean of all errors by more than 0.05 points, so norms 4 and "max" were dropped; the others
and the starts stay. For the RTX 4090's layers, which are not among the 167, one error grows: over 8 rows of
the output matrix, from 4.2 to 5.0 % (its median stays at 0.5). The cause is two rows just past a tile edge
where the GPU has none: they are 10 and 21 % off with "max", 12 and 26 % without.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fill import relaxed

from kvsim.kernels.calibration import fit
from kvsim.kernels.calibration.fit import Bounds, Measured, error_of
from kvsim.kernels.calibration.form import NORMS

SIX = (1, 1.5, 2, 3, 4, "max")
Wanted = tuple[str, Sequence[Measured], Mapping[str, object], Bounds]
Errors = tuple[float, ...]

FEWER: Mapping[str, tuple[Sequence[object], Sequence[float]]] = {
    "one start": (SIX, (1.0,)),
    "norms 1, 3": ((1, 3), fit.STARTS),
    "norms 1, 1.5": ((1, 1.5), fit.STARTS),
    "norms 1, max": ((1, "max"), fit.STARTS),
    "norms 1, 1.5, 3, max": ((1, 1.5, 3, "max"), fit.STARTS),
    "norms 1, 1.5, 2, 3": (NORMS, fit.STARTS),
}
LARGER = 0.001


def compared(parts: Iterable[Wanted]) -> Iterator[str]:
    """One line per simpler fit."""
    worse: dict[str, list[float]] = {name: [] for name in FEWER}
    for _, measured, constants, bounds in parts:
        found = {
            (norm, starts): tried(measured, constants, bounds, norm, starts)
            for norm in SIX
            for starts in (fit.STARTS, (1.0,))
        }
        if any(one is None for one in found.values()):
            continue
        whole = errors_of(found, SIX, fit.STARTS)
        for name, some in FEWER.items():
            pairs = zip(errors_of(found, *some), whole, strict=True)
            worse[name] += [error - before for error, before in pairs]
    for name, some in worse.items():
        larger = sum(each > LARGER for each in some)
        yield (
            f"{name:24}{larger:4} of {len(some)} errors larger by more than 0.1 point, "
            f"by up to {100 * max(some):.2f}; in the mean {100 * sum(some) / len(some):+.3f}"
        )


def errors_of(found: Mapping, norms: Sequence[object], starts: Sequence[float]) -> Errors:
    """Errors with the norm that the fit would take."""
    return min(found[norm, starts] for norm in norms)[1]


def tried(
    measured: Sequence[Measured],
    constants: Mapping[str, object],
    bounds: Bounds,
    norm: object,
    starts: Sequence[float],
) -> tuple[float, Errors] | None:
    """(least squares, mean errors on held-out rows and on new shapes) with one norm; None without a fit."""
    squares: list[float] = []
    fitted, before = fit.fit_form, (fit.NORMS, fit.STARTS)

    def watched(*arguments: object) -> tuple[dict, float]:
        form, found = fitted(*arguments)
        squares.append(found)
        return form, found

    try:
        fit.fit_form, fit.NORMS, fit.STARTS = watched, (norm,), tuple(starts)
        part = fit.fit_part([one.point for one in measured], measured, constants, bounds, relaxed)
    finally:
        fit.fit_form, (fit.NORMS, fit.STARTS) = fitted, before
    if part is None or not part["form"]["work_per_s"]:
        return None
    apart = [one for one in part["points"] if one["role"] == "held_out"]
    errors = [error_of(one for one in apart if one["x"]["new_shape"] is new) for new in (False, True)]
    last = squares[-len(fit.candidates(constants)) :]  # before them come the fits for each number of GPUs
    return min(last), tuple(error["mean"] for error in errors if error)
