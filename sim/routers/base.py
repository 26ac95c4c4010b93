"""The interface of a router: choose a replica for each request, from the replicas' state at its arrival.

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
    """What a router sees of a replica: its state when its current step began, and its current queue."""

    @property
    def place(self) -> int:
        """Its number in the fleet; it stays the same when other replicas cannot be chosen."""

    @property
    def pool(self) -> str:
        """The name of its pool; empty if all servers are equal."""

    @property
    def role(self) -> str:
        """What it does for a request: `both`, `prefill` or `decode`."""

    @property
    def waiting(self) -> int:
        """Requests in its queue."""

    @property
    def running(self) -> int:
        """Sequences that it serves, including those in the host pool."""

    @property
    def requests(self) -> int:
        """All its requests: `waiting` and `running`."""

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
    def loading_tokens(self) -> int:
        """Tokens of requests whose keys and values are on their way to it."""

    @property
    def head_tokens(self) -> int:
        """Tokens that the head of its queue needs; 0: nobody waits."""

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that it must still compute, as far as it knows: a cache may have some."""

    @property
    def block_size(self) -> int:
        """Tokens per block of its KV memory."""

    @property
    def decode_tokens(self) -> int:
        """Tokens of all its decoding sequences together."""

    @property
    def capacity_tokens(self) -> int:
        """Tokens that its KV memory can hold."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Most tokens of one of its steps."""

    @property
    def max_num_seqs(self) -> int:
        """Most sequences of one of its steps."""

    def cached_tokens(self, request: Request) -> int:
        """Tokens of the prompt whose keys and values it has; 0 without a prefix cache."""

    def prefill_s(self, tokens: int) -> float:
        """Seconds it would take to compute a prompt of `tokens` tokens, with nothing else running."""

    def step_s(self, prompts: int, prompt_tokens: int, sequences: int, context_tokens: int) -> float:
        """Seconds of a step with equal prompts of these tokens in all, alongside decoding sequences."""


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
    """Interval between calls of `look`; 0: never."""

    def __init__(self, argument: str, rng: np.random.Generator, options: Mapping[str, object]) -> None:
        if argument:
            raise KvsimError(f"router takes no option, got {argument!r}")
        self.rng, self.options = rng, options

    def begin(self, workload: Workload) -> None:
        """See the requests before the first one comes: their labels, such as the session."""

    def look(self, replicas: Sequence[Seen]) -> None:
        """Look at all replicas, every `interval_ps`; for routers whose view of them is delayed."""

    def own(self, kind: type[T]) -> T:
        """Its own options, as `declares` defines them, with the user's settings."""
        return taken(kind, self.options)

    @abstractmethod
    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The place of the replica that the request goes to."""
