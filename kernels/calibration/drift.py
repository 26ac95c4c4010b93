"""Check whether the card was as fast at the end as at the beginning.

The sentinels, one decode and one product, are timed before each part, at the end, and when a calibration
resumes. The launches are the same, so differences are due to the card. Pauses keep them below the power
limit, which is no fault of the card. The card's clocks are read meanwhile, under load.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from kvsim.kernels.calibration.card import SLOWED_BY, THROTTLED
from kvsim.kernels.calibration.points import SENTINEL, Point

if TYPE_CHECKING:
    from kvsim.kernels.calibration.bench import Stopwatch

MOST_DRIFT = 0.03


def sentinels(rehearsal: bool) -> list[Point]:
    """The points that are timed repeatedly; an H200 takes 60 and 300 us per launch by the datasheet."""
    decode = {"batch": 64, "context": 1024, "kv_heads": 8, "group": 4, "head_dim": 128}
    product = {"tokens": 4096, "inputs": 4096, "outputs": 8192}
    if rehearsal:
        decode = {"batch": 2, "context": 40, "kv_heads": 2, "group": 2, "head_dim": 32}
        product = {"tokens": 4, "inputs": 64, "outputs": 64}
    decode |= {"element_bytes": 2, "block_size": 16}
    return [Point("decode", decode, SENTINEL), Point("product", product, SENTINEL)]


def reading(
    stopwatch: "Stopwatch", rehearsal: bool, read_clocks: Callable[[], Mapping[str, str]]
) -> tuple[Mapping[str, str], dict[str, list[float]]]:
    """(clocks under load, sentinel -> seconds of one launch, per repeat; empty if it failed)."""
    points = sentinels(rehearsal)
    samples = stopwatch.seconds(points)
    seconds = {point.part: list(one.seconds) for point, one in zip(points, samples, strict=True)}
    return stopwatch.under_load(read_clocks), seconds


def drift_of(readings: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Sentinel -> its slowest median over its fastest, minus 1; only medians above 0 count."""
    found = {}
    for point in sentinels(rehearsal=False):
        medians = [median(one[point.part]) for one in readings if one.get(point.part)]
        if medians := [each for each in medians if each > 0]:
            found[point.part] = max(medians) / min(medians) - 1
    return found


def disturbances(measured: Mapping[str, Any]) -> list[str]:
    """Signs in a profile's `measured` that the card changed during the calibration, in words."""
    far = [
        f"{part} by {drift:.1%}" for part, drift in measured.get("drift", {}).items() if drift > MOST_DRIFT
    ]
    found = [f"the GPU drifted: {', '.join(far)}, more than {MOST_DRIFT:.0%}"] if far else []
    for one in measured.get("sentinels", ()):
        if failed := [part for part, seconds in one.items() if part != "when" and not any(seconds)]:
            found.append(f"the sentinels failed {one['when']}: {', '.join(failed)}")
    for clocks in measured.get("clocks", ()):
        if slowed := THROTTLED.intersection(clocks.get(SLOWED_BY, "").split(", ")):
            found.append(f"the GPU throttled {clocks['when']}: {', '.join(sorted(slowed))}")
    return found
