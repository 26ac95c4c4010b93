"""What a router must do: choose a replica for each request, from what can be seen of them when it comes.

class Mine(Router):
    def choose(self, request, replicas):
        return min(range(len(replicas)), key=lambda place: replicas[place].waiting)
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol, TypeVar

import numpy as np
from mypy_extensions import mypyc_attr

from kvsim.allocators.option import NoOptions
from kvsim.sim.errors import KvsimError
from kvsim.sim.option import taken
from kvsim.sim.serving.request import Request
from kvsim.sim.workload import Workload

T = TypeVar("T")


class Seen(Protocol):
    """What a router sees of a replica: its state when its present step began, and its queue as it is."""

    @property
    def place(self) -> int:
        """Its number in the fleet: it stays the same where others cannot be chosen."""

    @property
    def pool(self) -> str:
        """The name of its pool; empty where all servers are equal."""

    @property
    def role(self) -> str:
        """What it does for a request: `both`, `prefill` or `decode`."""

    @property
    def waiting(self) -> int:
        """Requests in its queue."""

    @property
    def running(self) -> int:
        """Sequences that it serves, those in the host pool included."""

    @property
    def requests(self) -> int:
        """All that it has: `waiting` and `running`."""

    @property
    def used_share(self) -> float:
        """Share of its KV memory that is allocated."""

    @property
    def used_tokens(self) -> int:
        """Tokens for which KV memory is allocated."""

    @property
    def waiting_tokens(self) -> int:
        """Tokens of the prompts in its queue."""

    @property
    def head_tokens(self) -> int:
        """Tokens that the head of its queue needs; 0: nobody waits."""

    @property
    def prefill_tokens(self) -> int:
        """Tokens of prompts that it has and must still compute, as far as it knows: a cache may have some."""

    @property
    def block_size(self) -> int:
        """Tokens of a block of its KV memory."""

    @property
    def decode_tokens(self) -> int:
        """Tokens that its decoding sequences have, all together."""

    @property
    def capacity_tokens(self) -> int:
        """Tokens that its KV memory can hold."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of one of its steps, at most."""

    @property
    def max_num_seqs(self) -> int:
        """Sequences of one of its steps, at most."""

    def cached_tokens(self, request: Request) -> int:
        """Tokens of the prompt whose keys and values it has; 0 without a prefix cache."""

    def prefill_s(self, tokens: int) -> float:
        """Seconds in which it would compute a prompt of so many tokens, with nothing beside it."""

    def step_s(self, prompts: int, prompt_tokens: int, sequences: int, context_tokens: int) -> float:
        """Seconds of a step with so many equal prompts, of these tokens, beside sequences that decode."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Router:
    """Chooses a replica for each request, in order of arrival.

    Parameters
    ----------
    argument : str
        What follows the name and a colon, or "".
    rng : numpy Generator
        The only randomness it may use.
    options : mapping
        Options of all parts of the run, by name.
    """

    declares: ClassVar[type] = NoOptions
    """Its own options: a frozen dataclass of `option` fields (allocators/option.py)."""
    interval_ps: int = 0
    """How often it wants to `look`; 0: never."""

    def __init__(self, argument: str, rng: np.random.Generator, options: Mapping[str, object]) -> None:
        if argument:
            raise KvsimError(f"router takes no option, got {argument!r}")
        self.rng, self.options = rng, options

    def begin(self, workload: Workload) -> None:
        """Hear of the requests before the first one comes: their labels, such as the session."""

    def look(self, replicas: Sequence[Seen]) -> None:
        """Look at all replicas, every `interval_ps`: what a router knows that hears of them late."""

    def own(self, kind: type[T]) -> T:
        """Its own options, as `declares` has them, with what the user set of them."""
        return taken(kind, self.options)

    @abstractmethod
    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The place of the replica that the request goes to."""
