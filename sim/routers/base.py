"""The interface of routers: choose a replica for each request, by the replicas' state at its arrival.

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
    """What a router sees of a replica: its state at the start of its current step, and its current queue."""

    @property
    def place(self) -> int:
        """Its number in the fleet, which stays the same when other replicas cannot be chosen."""

    @property
    def pool(self) -> str:
        """The name of its pool; empty if all servers are equal."""

    @property
    def role(self) -> str:
        """Its role: `both`, `prefill` or `decode`."""

    @property
    def waiting(self) -> int:
        """Requests in its queue."""

    @property
    def running(self) -> int:
        """Sequences that it serves, including those in its host pool."""

    @property
    def requests(self) -> int:
        """All its requests: `waiting` and `running`."""

    @property
    def used_share(self) -> float:
        """Allocated share of its KV memory."""

    @property
    def used_tokens(self) -> int:
        """Tokens for which its KV memory is allocated."""

    @property
    def waiting_tokens(self) -> int:
        """Tokens of the prompts in its queue."""

    @property
    def loading_tokens(self) -> int:
        """Tokens of requests whose keys and values are being loaded."""

    @property
    def head_tokens(self) -> int:
        """Tokens needed by the head of its queue; 0: nobody waits."""

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens still to compute, as far as it knows: a cache may have some of them."""

    @property
    def block_size(self) -> int:
        """Tokens per block of its KV memory."""

    @property
    def decode_tokens(self) -> int:
        """Total tokens of its decoding sequences."""

    @property
    def capacity_tokens(self) -> int:
        """Tokens that its KV memory can hold."""

    @property
    def max_num_batched_tokens(self) -> int:
        """Token budget of one of its steps."""

    @property
    def max_num_seqs(self) -> int:
        """Limit on the sequences of one of its steps."""

    def cached_tokens(self, request: Request) -> int:
        """Tokens of the prompt whose keys and values it has; 0 without a prefix cache."""

    def prefill_s(self, tokens: int) -> float:
        """Seconds to compute a prompt of `tokens` tokens there, with nothing else running."""

    def step_s(self, prompts: int, prompt_tokens: int, sequences: int, context_tokens: int) -> float:
        """Seconds of a step with equal prompts of so many tokens in total, beside its decoding sequences."""


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
        """Called with the requests before the first one arrives: their labels, such as the session."""

    def look(self, replicas: Sequence[Seen]) -> None:
        """Look at all replicas, every `interval_ps`; for routers whose view of them is delayed."""

    def own(self, kind: type[T]) -> T:
        """Its own options, as `declares` defines them, with the user's values."""
        return taken(kind, self.options)

    @abstractmethod
    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The place of the replica for the request."""
