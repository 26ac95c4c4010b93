"""Give runs distinct labels, such as runs of one allocator at several rates."""

from collections.abc import Sequence
from dataclasses import replace
from os.path import commonpath

from kvsim.reports.rundir.run import Run
from kvsim.sim.complaints import printable


def told_apart(runs: Sequence[Run]) -> list[Run]:
    """Each run with a distinct label: if labels repeat, the differing part of the paths is added.

    Replicas of a fleet share a path but are separate runs.
    """
    once = list({(run.path.resolve(), run.place): run for run in runs}.values())
    if len({run.label for run in once}) == len(once):
        return once
    parts = [run.path.resolve().parts for run in once]
    first = len(commonpath([run.path.resolve().parent for run in once]).strip("/").split("/")) + 1
    first = min(first, *(len(each) - 1 for each in parts))
    tails = [each[first:] for each in parts]
    while all(len(tail) > 1 and tail[-1] == tails[0][-1] for tail in tails):
        tails = [tail[:-1] for tail in tails]
    names = [printable("/".join(tail)) for tail in tails]
    return [
        replace(run, label=name if run.place is None else f"{name}, {run.label}")
        for run, name in zip(once, names, strict=True)
    ]
