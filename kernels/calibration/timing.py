"""How launches are timed, in a calibration and in benchmarks/kernels.py.

The launches of one point are captured in a CUDA graph, at least 16 of them with different keys, values or
weights (like the layers of a model), so that the L2 cache is cold and gaps between kernels are as in an
engine. The time of a replay is divided by their number. The result is the median, with the 10th and 90th
percentile. Data is random, as zeros are faster. On the CPU the launches run one by one: a rehearsal, whose
times mean nothing.

A GPU under load lowers its clocks to stay within its power limit, so its speed depends on what it has just
done. A calibration times each point alone, in the steady state of its own launches, since a server repeats
its steps too. The contestants of a benchmark take turns, so that all run at the same clocks.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf
from statistics import median, quantiles
from typing import TYPE_CHECKING

from kvsim.kernels.calibration.errors import DeviceLostError

if TYPE_CHECKING:
    import torch

Launches = Sequence[Callable[[], object]]

LEAST_LAUNCHES, MOST_LAUNCHES = 16, 64
LEAD_BYTES = 1 << 28
"""Read before a graph is timed: this takes tens of microseconds on any GPU, more than the host needs for a
launch. Writing instead would leave dirty data in L2 for the graph to write back."""
COLD_BYTES = 2**30
"""A graph reads at least this much if 64 launches can, many times the size of L2."""

WARM_UPS = 2
"""Minimum number of uncounted turns."""
WARM_UP_S = 0.08
"""No turn counts before the GPU has been busy for this long: it soon reaches its power limit and lowers its
clocks, as in a server; an H200 by a fifth within 40 ms of matrix products."""
LEAST_REPEATS = 3
"""Minimum number of counted turns, however long they take."""


@dataclass(frozen=True)
class Datasheet:
    """The vendor's numbers, which no measurement can exceed.

    Attributes
    ----------
    part : str
        A substring of the device's name in torch.
    gpu : str or None
        The name in sim/models/gpus.toml, if it is listed.
    gb_per_s, tflops : float
        Memory bandwidth, and dense 16-bit matrix products.
    """

    part: str
    gpu: str | None
    gb_per_s: float
    tflops: float


DATASHEETS = (
    Datasheet("GH200", None, 4900, 989), Datasheet("H200", "h200", 4800, 989),
    Datasheet("H20", "h20", 4000, 148),
    Datasheet("H100 PCIe", "h100-pcie", 2000, 756), Datasheet("H100 NVL", "h100-nvl", 3900, 835),
    Datasheet("H100", "h100", 3350, 989), Datasheet("A100-SXM4-80GB", "a100-80gb", 2039, 312),
    Datasheet("A100 80GB", None, 1935, 312), Datasheet("A100", "a100-40gb", 1555, 312),
    Datasheet("GB300", None, 8000, 2500), Datasheet("B300", "b300", 8000, 2250),
    Datasheet("GB200", "gb200", 8000, 2500), Datasheet("B200", "b200", 7700, 2250),
    Datasheet("L40S", "l40s", 864, 362), Datasheet("L40", None, 864, 181), Datasheet("L4", "l4", 300, 121),
    Datasheet("A10G", "a10g", 600, 70), Datasheet("A10", "a10", 600, 125),
    Datasheet("4090", "rtx-4090", 1008, 165), Datasheet("5090", "rtx-5090", 1792, 209.5),
    Datasheet("RTX PRO 6000 Blackwell Workstation", "rtx-pro-6000", 1792, 503.8),
    Datasheet("RTX PRO 6000 Blackwell Server", None, 1597, 503.8),
)  # fmt: skip


def datasheet_of(device: str) -> Datasheet | None:
    """The first datasheet whose `part` is in the device's name; a MIG slice has the bounds of its GPU."""
    found = next((sheet for sheet in DATASHEETS if sheet.part in device), None)
    return replace(found, gpu=None) if found is not None and " MIG " in device else found


def refusal(
    sheet: Datasheet | None,
    seconds: float,
    moved: float = 0,
    flops: float = 0,
    most_tflops: float | None = None,
) -> str | None:
    """Why it is impossible to move these bytes or compute these flops in this time; None if it is possible.

    `most_tflops` replaces the datasheet's number if a stricter bound is known.
    """
    bandwidth, peak = (sheet.gb_per_s, sheet.tflops) if sheet else (inf, inf)
    peak = peak if most_tflops is None else most_tflops
    if seconds <= 0:
        return "no time at all: the clock is too coarse, or nothing ran"
    gb_per_s, tflops = moved / seconds / 1e9, flops / seconds / 1e12
    if gb_per_s > bandwidth:
        return f"{gb_per_s:.0f} GB/s, more than the device's {bandwidth:.0f}"
    if tflops > peak:
        return f"{tflops:.0f} TFLOP/s, more than the device's {peak:.0f}"
    return None


def launches_wanted(launch_bytes: float) -> int:
    """How many launches a graph needs, if each reads this many bytes."""
    return min(max(LEAST_LAUNCHES, ceil(COLD_BYTES / max(launch_bytes, 1))), MOST_LAUNCHES)


def spread(seconds: Sequence[float]) -> tuple[float, float, float]:
    """(median, 10th percentile, 90th percentile)."""
    middle = median(seconds)
    if len(seconds) < 2:
        return middle, middle, middle
    low, *_, high = quantiles(seconds, n=10, method="inclusive")
    return middle, low, high


def interleaved(
    replays: Mapping[str, tuple[Callable[[], float], int]],
    repeats: int,
    *,
    warm_ups: int = WARM_UPS,
    warm_up_s: float = 0.0,
    enough_s: float = inf,
    rest_s: float = 0.0,
    failed: Callable[[str, Exception], object] | None = None,
) -> dict[str, list[float]]:
    """Seconds per launch, `repeats` each, taking turns, after at least `warm_ups` turns and `warm_up_s`.

    After `enough_s` in total there are fewer repeats, but at least LEAST_REPEATS. `rest_s`: pause before
    each. `replays`: a call that runs all launches and returns its seconds, and the number of launches.
    `failed`: called for one that raises, which then takes no more turns; without it the error is raised.
    """
    times: dict[str, list[float]] = {name: [] for name in replays}
    turn, counted, started = 0, 0, time.perf_counter()
    while times and counted < repeats:
        now = time.perf_counter()
        warm = turn >= warm_ups and now - started >= warm_up_s
        if warm and not counted:
            enough = now + enough_s
        if counted >= LEAST_REPEATS and now >= enough:
            break
        turn, counted = turn + 1, counted + warm
        for name in list(times):
            replay, launches = replays[name]
            time.sleep(rest_s)
            try:
                seconds = replay() / launches
            except Exception as error:
                if failed is None:
                    raise
                failed(name, error)
                del times[name]
                continue
            if warm:
                times[name].append(seconds)
    return times


def too_large(error: Exception) -> bool:
    """Whether GPU memory or a multiprocessor's resources ran out, so that later launches may still fit."""
    import torch
    from triton.runtime.errors import OutOfResources

    return isinstance(error, MemoryError | torch.OutOfMemoryError | OutOfResources)


def expect_alive(error: Exception, device: "str | torch.device" = "cuda") -> None:
    """Raise DeviceLostError if an error has broken the GPU's context: later launches would all fail."""
    import torch

    if too_large(error):
        return
    try:
        torch.ones(64, device=device).sum().item()
    except torch.OutOfMemoryError:
        return
    except RuntimeError:
        raise DeviceLostError(f"the GPU answers no more, after {words_of(error)}") from error


def words_of(error: Exception) -> str:
    """A failure in one line."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"


def graph_of(launches: Launches) -> "torch.cuda.CUDAGraph":
    """Capture the launches as one CUDA graph, after running the first two on their own."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles, and lets libraries allocate memory
        for launch in launches[:2]:
            launch()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    return graph


@dataclass(frozen=True)
class Captured:
    """A call that replays launches as one CUDA graph and returns its GPU seconds.

    Attributes
    ----------
    launches : sequence
        Own the tensors that the graph reads, which must live as long as the graph.
    graph : torch.cuda.CUDAGraph
        The graph of all launches.
    """

    launches: Launches
    graph: "torch.cuda.CUDAGraph"

    def __call__(self) -> float:
        """Replay once, queued behind work that outlasts the launch of the graph, which is not timed."""
        _lead().sum()
        return on_gpu_clock([self.graph.replay])()


@lru_cache
def _lead() -> "torch.Tensor":
    """A tensor that takes the GPU longer to read than the host needs for a launch."""
    import torch

    return torch.ones(LEAD_BYTES // 4, dtype=torch.float32, device="cuda")


def captured(launches: Launches) -> Captured:
    """Capture launches for timing."""
    return Captured(launches, graph_of(launches))


def on_gpu_clock(launches: Launches) -> Callable[[], float]:
    """A call that starts the launches one by one and returns GPU seconds, between two events."""
    import torch

    def run() -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        start.record()
        for launch in launches:
            launch()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000

    return run


def on_host_clock(launches: Launches, wait: Callable[[], object] | None = None) -> Callable[[], float]:
    """A call that starts the launches one by one and returns the host's seconds.

    `wait`: called before the clock starts; the host does not wait while it runs.
    """

    def run() -> float:
        if wait:
            wait()
        start = time.perf_counter()
        for launch in launches:
            launch()
        return time.perf_counter() - start

    return run
