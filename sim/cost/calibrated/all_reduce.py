"""The time of an all-reduce over a group of GPUs: measured within a node, modelled between nodes.

    node      ring of n GPUs: start, and 2 (n - 1) / n of the bytes over the links' share for the number of
              GPUs in the node
    one shot  if every GPU may send everything to every other directly: one start and g - 1 messages; taken
              if shorter, as for small messages (one_shot_s: seconds per byte of the link)
    network   start and bytes of sim/cost/collective.py; the node's own part overlaps, the longer one counts

Without measurements a node is priced as in the roofline. So are GPUs without peer access, which the tables
assume. Anything not measured counts as outside.
"""

from bisect import bisect_right
from collections.abc import Mapping

from kvsim.sim.cost.calibrated.parts import Along, Part, Priced
from kvsim.sim.cost.collective import Group, all_reduce_s, between_nodes_s
from kvsim.sim.models.spec import GpuSpec
from kvsim.sim.workload import PS_PER_S


class AllReduce:
    """An all-reduce over the GPUs of a group; `part` is None if the profile has none."""

    def __init__(
        self, part: Part | None, gpu: GpuSpec, group: Group, one_shot_s: float | None = None
    ) -> None:
        gpus, nodes = group
        if not gpu.link_bytes_per_s and not gpu.peer_access:
            part = None
        self._along = None if part is None or gpus == 1 else Along(part, "bytes", gpus=gpus)
        shares, starts = (part.constants.get(name, {}) if part else {} for name in ("shares", "starts"))
        self._ring = 2 * (1 - 1 / (gpus * nodes)) * _by_count(shares, gpus, 1.0)
        self._start = _by_count(starts, gpus, 0.0)
        self._unmeasured = all_reduce_s(gpu, Group(gpus))
        self._words = f"all-reduce of {gpus} GPUs{'' if gpu.peer_access else ' through the host'}"
        self._network = between_nodes_s(gpu, group) if nodes > 1 else None
        self._shot_ps = None if one_shot_s is None or nodes > 1 else (gpus - 1) * one_shot_s * PS_PER_S
        self._least_ps = self._in_node(0.0).ps

    def priced(self, size: float) -> Priced:
        """An all-reduce of `size` bytes on each GPU."""
        found = self._in_node(size)
        if self._shot_ps is not None and self._least_ps + size * self._shot_ps < found.ps:
            return Priced(self._least_ps + size * self._shot_ps)
        if self._network is None:
            return found
        start_s, each_s = self._network
        ps = max(start_s * PS_PER_S + max(found.ps - self._least_ps, size * each_s * PS_PER_S), found.ps)
        return Priced.of(ps, [("all-reduce over the network", "", 0.0)])

    def _in_node(self, size: float) -> Priced:
        if self._along is not None:
            return self._along.priced(self._ring * size, self._start, size)
        least_s, each_s = self._unmeasured
        return Priced.of((least_s + size * each_s) * PS_PER_S, [(self._words, "", 0.0)])


def _by_count(values: Mapping[str, float], gpus: int, default: float) -> float:
    """The value for `gpus` GPUs, else for the next smaller number, else for the smallest."""
    known = sorted(map(int, values))
    return values[str(known[max(bisect_right(known, gpus) - 1, 0)])] if known else default
