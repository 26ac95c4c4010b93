"""A table of request lengths from a trace, and how many of its rows to take.

    num_prompts    rows taken
    none given     the whole table, in file order
    N <= rows      the first N, in file order
    N >  rows      N rows drawn with replacement: real lengths, but no longer in their real order

The model's limits are ignored here: the engine rejects requests that are too long.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from kvsim.sim.content import Texts
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import LATEST_ARRIVAL_S, Int64Column, Samples


@dataclass(frozen=True)
class Lengths:
    """Requests of a trace, one row each; everything but the lengths may be unknown.

    Attributes
    ----------
    name : str
        The trace they come from, e.g. `sharegpt`.
    prompt_tokens, output_tokens : int64 arrays, shape (n,)
        Lengths in tokens, in trace order; with several answers, the longest.
    notes : tuple of str
        Sentences for the reader (source, sampling).
    arrival_s : float64 array, shape (n,), or None
        The trace's own arrivals, never decreasing; None if it has none.
    samples : Samples or None
        The answers of each request; empty for requests whose number of answers the trace does not give.
    texts : Texts or None
        Contents of prompts and answers; None if nothing can be shared.
    priority : int64 array, shape (n,), or None
    drafts : object array, shape (n,), or None
    labels : mapping of str to arrays of shape (n,)
        As in a Workload.
    endless : bool
        The row is a template for every request: any number can be taken, without a note.
    """

    name: str
    prompt_tokens: Int64Column
    output_tokens: Int64Column
    notes: tuple[str, ...] = ()
    arrival_s: npt.NDArray[np.float64] | None = None
    samples: Samples | None = None
    texts: Texts | None = None
    priority: Int64Column | None = None
    drafts: npt.NDArray[np.object_] | None = None
    labels: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    endless: bool = False

    def __post_init__(self) -> None:
        prompts, outputs = len(self.prompt_tokens), len(self.output_tokens)
        if prompts != outputs:
            raise KvsimError(f"output_tokens has {outputs} rows, prompt_tokens has {prompts}")
        if not prompts:
            raise KvsimError(f"trace {self.name!r} has no rows")

    def __len__(self) -> int:
        return len(self.prompt_tokens)

    def rows(self, chosen: Int64Column) -> "Lengths":
        """These rows, in this order; rows may repeat."""
        return replace(
            self,
            prompt_tokens=self.prompt_tokens[chosen],
            output_tokens=self.output_tokens[chosen],
            arrival_s=None if self.arrival_s is None else self.arrival_s[chosen],
            samples=self.samples and self.samples.rows(chosen),
            texts=self.texts and self.texts.rows(chosen),
            priority=None if self.priority is None else self.priority[chosen],
            drafts=None if self.drafts is None else self.drafts[chosen],
            labels={name: column[chosen] for name, column in self.labels.items()},
        )


MOST_PROMPTS = 20_000_000
MOST_SAMPLES = 64
FIRST_OF, REPEATED = "The first ", "drawn with replacement"
"""Phrases of notes on fewer, or more, requests than the trace has rows."""


def take(
    lengths: Lengths, num_prompts: int | None, rng: np.random.Generator, shuffle: bool = False
) -> Lengths:
    """Take this many rows: the first ones, or with `shuffle` distinct random ones.

    If the table has fewer rows, and no arrivals, they are drawn with replacement.
    """
    rows = len(lengths)
    if shuffle and not lengths.endless and (num_prompts is None or 1 <= num_prompts <= rows):
        chosen = rng.permutation(rows)[:num_prompts]
        whole = f"The {rows:,} rows of {lengths.name}, in an order drawn by the seed."
        part = f"{len(chosen):,} of the {rows:,} rows of {lengths.name}, drawn by the seed."
        note = whole if len(chosen) == rows else part
        return replace(lengths.rows(chosen), notes=(*lengths.notes, note))
    if num_prompts is None or num_prompts == rows:
        return lengths
    if not 1 <= num_prompts <= MOST_PROMPTS:
        limits = "at least 1" if num_prompts < 1 else f"at most {MOST_PROMPTS:,}"
        raise KvsimError(f"num_prompts must be {limits}, got {num_prompts}")
    if lengths.endless:
        return lengths.rows(np.arange(num_prompts) % rows)
    if num_prompts < rows:
        chosen = np.arange(num_prompts)
        many = f"{num_prompts:,} " if num_prompts > 1 else ""
        first = f"{FIRST_OF}{many}of the {rows:,} rows of {lengths.name}"
        note = f"{first}, whatever the seed (see --shuffle)." if lengths.arrival_s is None else f"{first}."
    elif lengths.arrival_s is not None:
        raise KvsimError(
            f"num_prompts must be at most {rows}, the requests of trace {lengths.name}, which have their "
            f"own arrival times, got {num_prompts}"
        )
    else:
        chosen = rng.integers(rows, size=num_prompts)
        note = f"{num_prompts:,} rows {REPEATED} from the {rows:,} of {lengths.name}."
    return replace(lengths.rows(chosen), notes=(*lengths.notes, note))


def within_clock(lengths: Lengths) -> Lengths:
    """The requests that arrive within the clock's limit; a note counts the others."""
    if lengths.arrival_s is None or lengths.arrival_s[-1] <= LATEST_ARRIVAL_S:
        return lengths
    kept = int(np.searchsorted(lengths.arrival_s, LATEST_ARRIVAL_S, side="right"))
    ends = f"the clock ends at {LATEST_ARRIVAL_S:,.0f} s ({LATEST_ARRIVAL_S / 86_400:.0f} days)"
    if not kept:
        first = f"the first request arrives at {lengths.arrival_s[0]:,.0f} s"
        raise KvsimError(f"trace {lengths.name} begins too late: {first}, {ends}")
    late = len(lengths) - kept
    note = f"{late:,} request{'s' * (late > 1)} left out: arrival too late, {ends}."
    return replace(lengths.rows(np.arange(kept)), notes=(*lengths.notes, note))
