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

T = TypeVar("T")


class Seen(Protocol):
    """What a router sees of a replica: its state when its present step began, and its queue as it is."""

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

    def cached_tokens(self, request: Request) -> int:
        """Tokens of the prompt whose keys and values it has; 0 without a prefix cache."""


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

    def __init__(self, argument: str, rng: np.random.Generator, options: Mapping[str, object]) -> None:
        if argument:
            raise KvsimError(f"router takes no option, got {argument!r}")
        self.rng, self.options = rng, options

    def own(self, kind: type[T]) -> T:
        """Its own options, as `declares` has them, with what the user set of them."""
        return taken(kind, self.options)

    @abstractmethod
    def choose(self, request: Request, replicas: Sequence[Seen]) -> int:
        """The place of the replica that the request goes to."""
