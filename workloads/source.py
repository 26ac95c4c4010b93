"""Described traffic with its trace read: draws the requests of any seed, and says what was left open.

source = opened(Traffic(trace="sharegpt", request_rate=4.0))
source.workload()                                  # the requests of the traffic's own seed
source.workload(seed=7)                            # others, without reading the trace again
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kvsim import workloads
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.workload import Workload
from kvsim.workloads.lengths import Lengths
from kvsim.workloads.when import When

READING = ("tokenizer", "turns", "columns")
"""Options that say how the trace is read, not which of its requests are taken."""


@dataclass(frozen=True)
class Source:
    """Traffic whose trace was read."""

    traffic: Traffic
    lengths: Lengths

    @property
    def name(self) -> str:
        """The trace's name, fit for a directory's."""
        return self.lengths.name

    def with_seed(self, seed: int) -> "Source":
        """The same with another seed."""
        return replace(self, traffic=replace(self.traffic, seed=seed))

    @property
    def when(self) -> When:
        """The choices of when requests come."""
        return When.of(self.traffic)

    @property
    def replays(self) -> bool:
        """Whether requests come at times that a trace tells, this one or another."""
        return self.when.replays(self.lengths)

    def drawn_anew(self) -> "Source":
        """The same with rows that every seed draws anew, unless told otherwise.

        Where the order of the rows means something, or nothing, it is the same.
        """
        ordered = (self.replays and self.when.others is None) or "session" in self.lengths.labels
        if self.traffic.shuffle is not None or ordered or self.lengths.endless:
            return self
        return replace(self, traffic=replace(self.traffic, shuffle=True))

    def as_json(self) -> dict[str, Any]:
        """All options, also those that were left open; None where there is nothing to choose."""
        return self.traffic.as_json(workloads.usual(self.lengths, self.traffic))

    def differing(self) -> dict[str, Any]:
        """The options that differ from what is usual for the trace."""
        read = {name: getattr(self.traffic, name) for name in ("trace", *READING)}
        usual = replace(self, traffic=Traffic(**read)).as_json()
        return {
            name: value
            for name, value in self.as_json().items()
            if value not in (None, usual[name]) and name not in read
        }

    def workload(self) -> Workload:
        """The requests."""
        named = workloads.usual(self.lengths, self.traffic)
        given = {
            name: named.get(name) if value is None else value for name, value in vars(self.traffic).items()
        }
        return workloads.build(**given | {"trace": self.lengths})


def opened(traffic: Traffic, heard: Callable[[int], None] = lambda size: None) -> Source:
    """Read the trace; `heard` is told how many characters of its texts were counted, now and then."""
    from kvsim.workloads.tokenized import load_counted

    return Source(
        traffic, load_counted(traffic.trace, traffic.tokenizer, traffic.turns, heard, traffic.columns)
    )
