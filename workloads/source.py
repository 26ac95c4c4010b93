"""Traffic whose trace has been read: draws the requests of any seed, and fills in open options.

source = opened(Traffic(trace="sharegpt", request_rate=4.0))
source.workload()                                  # the requests of the traffic's own seed
source.workload(seed=7)                            # other requests, without rereading the trace
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
"""Options for reading the trace, which do not affect what requests are taken from it."""


@dataclass(frozen=True)
class Source:
    """Traffic whose trace has been read."""

    traffic: Traffic
    lengths: Lengths

    @property
    def name(self) -> str:
        """The trace's name, usable as a directory name."""
        return self.lengths.name

    def with_seed(self, seed: int) -> "Source":
        """The same source with another seed."""
        return replace(self, traffic=replace(self.traffic, seed=seed))

    @property
    def when(self) -> When:
        """The choices for when requests arrive."""
        return When.of(self.traffic)

    @property
    def replays(self) -> bool:
        """Whether requests arrive at times from this or another trace."""
        return self.when.replays(self.lengths)

    def drawn_anew(self) -> "Source":
        """The same source, with rows drawn again by every seed unless specified otherwise.

        Unchanged if the order of the rows matters, or shuffling has no effect.
        """
        ordered = (self.replays and self.when.others is None) or "session" in self.lengths.labels
        if self.traffic.shuffle is not None or ordered or self.lengths.endless:
            return self
        return replace(self, traffic=replace(self.traffic, shuffle=True))

    def as_json(self) -> dict[str, Any]:
        """All options, including open ones; None if there is nothing to choose."""
        return self.traffic.as_json(workloads.usual(self.lengths, self.traffic))

    def differing(self) -> dict[str, Any]:
        """The options that differ from the trace's defaults."""
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
    """Read the trace; `heard` is called repeatedly with the number of characters tokenized."""
    from kvsim.workloads.tokenized import load_counted

    return Source(
        traffic, load_counted(traffic.trace, traffic.tokenizer, traffic.turns, heard, traffic.columns)
    )
