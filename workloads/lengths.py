"""How long requests are: a table of prompt and output lengths, and how many rows of it to take.

    num_prompts    rows taken
    none given     the whole table, in file order
    N <= rows      the first N, in file order
    N >  rows      N rows drawn with replacement: real lengths, but no longer in their real order

Ignores any limit of the model: a request too long for it is the engine's to refuse.
"""

from dataclasses import dataclass

import numpy as np

from sim.errors import KvsimError
from sim.workload import Int64Column


@dataclass(frozen=True)
class Lengths:
    """Requests without arrivals.

    Attributes
    ----------
    name : str
        The trace they come from, e.g. `sharegpt`.
    prompt_tokens, output_tokens : int64 arrays, shape (n,)
        Lengths in tokens, in file order.
    notes : tuple of str
        Sentences a reader should know (source, sampling).
    """

    name: str
    prompt_tokens: Int64Column
    output_tokens: Int64Column
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        prompts, outputs = len(self.prompt_tokens), len(self.output_tokens)
        if prompts != outputs:
            raise KvsimError(f"output_tokens has {outputs} rows, prompt_tokens has {prompts}")
        if not prompts:
            raise KvsimError(f"trace {self.name!r} has no rows")

    def __len__(self) -> int:
        return len(self.prompt_tokens)


MOST_PROMPTS = 1_000_000_000


def take(lengths: Lengths, num_prompts: int | None, rng: np.random.Generator) -> Lengths:
    """As many rows as asked for; `rng` is used only when the table has fewer."""
    rows = len(lengths)
    if num_prompts is None or num_prompts == rows:
        return lengths
    if not 1 <= num_prompts <= MOST_PROMPTS:
        limits = "at least 1" if num_prompts < 1 else f"at most {MOST_PROMPTS:,}"
        raise KvsimError(f"num_prompts must be {limits}, got {num_prompts}")
    if num_prompts < rows:
        chosen = np.arange(num_prompts)
        note = f"The first {num_prompts:,} of the {rows:,} rows of {lengths.name}."
    else:
        chosen = rng.integers(rows, size=num_prompts)
        note = f"{num_prompts:,} rows drawn with replacement from the {rows:,} of {lengths.name}."
    return Lengths(
        name=lengths.name,
        prompt_tokens=lengths.prompt_tokens[chosen],
        output_tokens=lengths.output_tokens[chosen],
        notes=(*lengths.notes, note),
    )
