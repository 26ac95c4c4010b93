"""Time all-reduces: one process per GPU, torch.distributed (NCCL) captured in a CUDA graph.

A rehearsal uses CPU processes (gloo). After a failure the part is left out of the profile, with the reason
among the refused points.
"""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from pathlib import Path

import torch
from torch import distributed, multiprocessing

from kvsim.kernels.calibration.points import Point, Sample
from kvsim.kernels.calibration.timing import LEAST_LAUNCHES, captured, interleaved, on_host_clock

FAILURES = (
    RuntimeError,
    OSError,
    multiprocessing.ProcessRaisedException,
    multiprocessing.ProcessExitedException,
)
TIMEOUT = timedelta(seconds=120)


@dataclass(frozen=True)
class Task:
    """What the processes measure together: all-reduces of tensors of these sizes in bytes."""

    gpus: int
    sizes: Sequence[int]
    repeats: int
    rehearsal: bool
    folder: str

    @property
    def launches(self) -> int:
        """Launches per graph."""
        return 1 if self.rehearsal else LEAST_LAUNCHES


def all_reduce_seconds(points: Sequence[Point], repeats: int, rehearsal: bool) -> list[Sample]:
    """Measure each point of the part; points with the same number of GPUs share processes."""
    found = []
    for gpus, some in groupby(points, lambda point: point.x["gpus"]):
        sizes = [point.x["bytes"] for point in some]
        with tempfile.TemporaryDirectory() as folder:
            task = Task(gpus, sizes, repeats, rehearsal, folder)
            try:
                multiprocessing.spawn(measure, (task,), nprocs=gpus)
                times = json.loads(Path(folder, "seconds").read_text(encoding="utf-8"))
                found += [Sample(tuple(seconds), task.launches) for seconds in times]
            except FAILURES as error:
                failure = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[-1][:200]}"
                found += [Sample((), 0, failure) for _ in sizes]
    return found


def measure(rank: int, task: Task) -> None:
    """Run in each process; rank 0 writes its seconds to a file."""
    device = torch.device("cpu") if task.rehearsal else torch.device("cuda", rank)
    if not task.rehearsal:
        torch.cuda.set_device(device)
    distributed.init_process_group(
        "gloo" if task.rehearsal else "nccl", init_method=f"file://{task.folder}/meeting", rank=rank,
        world_size=task.gpus, timeout=TIMEOUT,
    )  # fmt: skip
    times = []
    for size in task.sizes:
        dtype = torch.float32 if task.rehearsal else torch.bfloat16
        tensor = torch.randn(size // dtype.itemsize, device=device).to(dtype)
        calls = [lambda tensor=tensor: distributed.all_reduce(tensor)] * task.launches
        replay = on_host_clock(calls) if task.rehearsal else captured(calls)
        distributed.barrier()
        times.append(interleaved({"": (replay, task.launches)}, task.repeats)[""])
    if rank == 0:
        Path(task.folder, "seconds").write_text(json.dumps(times), encoding="utf-8")
    distributed.barrier()
    distributed.destroy_process_group()
