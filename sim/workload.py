"""What arrives at the server: one row per request, as numpy columns.

A workload knows nothing about the engine. It is here, not in `workloads/`, because the engine reads it and
imports go one way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.allocators.base import Content
from kvsim.sim.errors import KvsimError

Int64Column = npt.NDArray[np.int64]

PS_PER_S: Final = 1_000_000_000_000
"""Picoseconds per second: the engine's clock counts whole picoseconds."""

LATEST_PS: Final = 2**63 - 1
"""Largest time in 64-bit picoseconds: 106 days."""
LATEST_ARRIVAL_S = 2**62 / PS_PER_S
"""Latest arrival (about 53 days), so that times fit in the clock's 64-bit columns with room to spare."""


@dataclass(frozen=True)
class Samples:
    """Several answers to one prompt: those of request i are `tokens[offsets[i] : offsets[i + 1]]` long.

    Attributes
    ----------
    offsets : int64 array, shape (n + 1,)
    tokens : int64 array, shape (offsets[n],)
        Lengths, each at least 1; every request has at least one.
    """

    offsets: Int64Column
    tokens: Int64Column

    def rows(self, chosen: Int64Column) -> "Samples":
        """The samples of these requests, in this order; requests may repeat."""
        offsets, places = gathered(self.offsets, chosen)
        return Samples(offsets, self.tokens[places])

    @property
    def counts(self) -> Int64Column:
        """Number of answers per request."""
        return np.diff(self.offsets)

    def check(self, output_tokens: Int64Column) -> None:
        """Raise KvsimError unless every request has lengths and `output_tokens` has the longest of each."""
        offsets, tokens, n = self.offsets, self.tokens, len(output_tokens)
        if len(offsets) != n + 1:
            raise KvsimError(f"samples must have {n + 1} offsets for {n} requests, got {len(offsets)}")
        if offsets[0] != 0 or offsets[-1] != len(tokens):
            ends = f"{offsets[0]} to {offsets[-1]}"
            raise KvsimError(f"samples must have offsets from 0 to {len(tokens)}, got {ends}")
        if not n:
            return
        if self.counts.min() < 1:
            row = self.counts.argmin()
            raise KvsimError(f"samples must be at least 1 per request, got {self.counts[row]} in row {row}")
        if tokens.min() < 1:
            raise KvsimError(f"samples must be at least 1 token long, got {tokens.min()}")
        longest = np.maximum.reduceat(tokens, offsets[:-1])
        wrong = np.flatnonzero(longest != output_tokens)
        if len(wrong):
            row = wrong[0]
            found = f"got {output_tokens[row]} in row {row}"
            raise KvsimError(f"output_tokens must be the longest sample, {longest[row]}, {found}")


class Beam(NamedTuple):
    """Beam search for every request: `width` candidates, chosen again after each step.

    Traces have no scores, so the surviving candidates are drawn at random.
    """

    width: int
    process: str
    """how the survivors are drawn, see sim/serving/beam.py"""
    seed: int


@dataclass(frozen=True)
class Chain:
    """Requests that come some time after the answer to an earlier one.

    Attributes
    ----------
    after : int64 array, shape (n,)
        The earlier row whose answer request i waits for; -1 for requests that come at `arrival_ps`.
    think_ps : int64 array, shape (n,)
        Time from that answer to the request.
    """

    after: Int64Column
    think_ps: Int64Column


@dataclass(frozen=True)
class Clients:
    """A closed loop: each client sends its next request some time after its last answer.

    Attributes
    ----------
    clients : int
        Number of concurrent clients, at least 1; all of them begin at 0.
    think_ps : int64 array, shape (n,)
        Time from the previous answer to request i.
    """

    clients: int
    think_ps: Int64Column


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival.

    Attributes
    ----------
    name : str
        The user's name for it, e.g. `sharegpt`.
    arrival_ps : int64 array, shape (n,)
        Arrival in picoseconds from the start; never decreasing.
    prompt_tokens, output_tokens : int64 arrays, shape (n,)
        Lengths in tokens, each at least 1; with several answers to a prompt, the longest.
    notes : tuple of str
        Notes (source, sampling), printed with every result.
    samples : Samples or None
        The lengths of all answers, if requests ask for several.
    beam : Beam or None
        How answers are searched for; None is plain sampling.
    content : sequence of n Contents, or None
        Per request, the text of the longest prefix of its tokens (prompt, then its first answer) that
        another request, or another answer to the same prompt, also starts with; `()` if there is none.
        Streams are numbered from 0. None if nothing is shared.
    priority : int64 array, shape (n,), or None
        Lower is served first, under `--policy priority`.
    waits : Chain, Clients or None
        Which requests wait for an answer before they come; the run then determines when. None: all come at
        `arrival_ps`, which never decreases.
    drafts : object array of shape (n,), or None
        Per request, its recorded drafts, if the engine speculates: (proposed, accepted) for each step that
        gave it tokens, the end of its prompt first. None: nothing was recorded.
    seed : int
        Seed for the remaining random choices: which drafts are accepted.
    held_ps : int64 array, shape (n,), or None
        Delay of each request on its way to the engine (sim/cost/frontend.py), if none waits for an answer;
        requests stay in order.
    labels : mapping of str to arrays of shape (n,)
        Other columns of the trace (session, turn, client), kept for the results.
    """

    name: str
    arrival_ps: Int64Column
    prompt_tokens: Int64Column
    output_tokens: Int64Column
    notes: tuple[str, ...] = field(default=())
    samples: Samples | None = None
    beam: Beam | None = None
    content: Sequence[Content] | None = None
    priority: Int64Column | None = None
    waits: Chain | Clients | None = None
    held_ps: Int64Column | None = None
    drafts: npt.NDArray[np.object_] | None = None
    seed: int = 0
    labels: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)

    @property
    def heard_ps(self) -> Int64Column:
        """When the engine sees each request that has an arrival time of its own."""
        return self.arrival_ps if self.held_ps is None else self.arrival_ps + self.held_ps

    @property
    def tokens(self) -> int:
        """Tokens of all prompts, each counted once, and of all answers or candidates."""
        answers = self.output_tokens if self.samples is None else self.samples.tokens
        width = 1 if self.beam is None else self.beam.width
        return int(self.prompt_tokens.sum() + width * answers.sum())

    def __post_init__(self) -> None:
        n = len(self.arrival_ps)
        for column in ("prompt_tokens", "output_tokens"):
            values = getattr(self, column)
            if len(values) != n:
                raise KvsimError(f"{column} has {len(values)} rows, arrival_ps has {n}")
            if not np.issubdtype(values.dtype, np.integer):
                broken = np.flatnonzero(~np.isfinite(values) | (np.floor(values) != values))
                found = (
                    f"{values[broken[0]]} in row {broken[0]}" if len(broken) else f"{values.dtype} numbers"
                )
                raise KvsimError(f"{column} must be whole numbers, got {found}")
            if n and values.min() < 1:
                raise KvsimError(f"{column} must be at least 1, got {values.min()} in row {values.argmin()}")
        ordered = self.waits is not None or not (np.diff(self.arrival_ps) < 0).any()
        ordered = ordered and (self.held_ps is None or not (np.diff(self.heard_ps) < 0).any())
        if n and (self.arrival_ps.min() < 0 or not ordered):
            raise KvsimError("arrival_ps must be non-negative and never decrease")
        if self.waits is not None:
            self._check_waits(self.waits)
        optional = {
            "content": self.content,
            "priority": self.priority,
            "held_ps": self.held_ps,
            "drafts": self.drafts,
            **self.labels,
        }
        for name, rows in optional.items():
            if rows is not None and len(rows) != n:
                raise KvsimError(f"{name} has {len(rows)} rows, arrival_ps has {n}")
        if self.priority is not None and not np.issubdtype(self.priority.dtype, np.integer):
            raise KvsimError(f"priority must be whole numbers, got {self.priority.dtype} numbers")
        if self.beam is not None and self.beam.width < 1:
            raise KvsimError(f"beam width must be at least 1, got {self.beam.width}")
        if self.samples is not None:
            if self.beam is not None:
                raise KvsimError("samples must be left out with beam search")
            self.samples.check(self.output_tokens)

    def _check_waits(self, waits: Chain | Clients) -> None:
        n = len(self)
        if len(waits.think_ps) != n or (n and waits.think_ps.min() < 0):
            raise KvsimError(f"think_ps must have {n} rows of at least 0, got {len(waits.think_ps)} rows")
        if isinstance(waits, Clients):
            if waits.clients < 1:
                raise KvsimError(f"clients must be at least 1, got {waits.clients}")
        elif len(waits.after) != n or (waits.after >= np.arange(n)).any() or (n and waits.after.min() < -1):
            raise KvsimError(f"after must name an earlier row, or -1, for each of {n} rows")

    def __len__(self) -> int:
        return len(self.arrival_ps)


def gathered(offsets: Int64Column, chosen: Int64Column) -> tuple[Int64Column, Int64Column]:
    """Concatenate the ranges `offsets[i]: offsets[i + 1]` of the chosen i.

    Returns
    -------
    new offsets, shape (len(chosen) + 1,), and the places of their elements
    """
    counts = np.diff(offsets)[chosen]
    new = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return new, np.arange(new[-1]) + np.repeat(offsets[:-1][chosen] - new[:-1], counts)
