"""How the steps of a server are decided: a scheduler that knows several ways chooses one, with its server.

    decide      the step that starts now; the server carries it out, and enters it in its record
    finish      a request has its last token
    end_step    the step is over
    rest        nobody is left

Drafts are one way (drafts.py), a tier below the memory is another (lower_tier.py). What a way does not have,
it does not ask about.
"""

from abc import abstractmethod
from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from kvsim.allocators.abilities import Pieces
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server


@dataclass(frozen=True)
class Limits:
    """What bounds a step of vLLM V1, however it is decided."""

    budget: int
    seats: int
    longest: int
    whole_prompt: bool
    """a request enters only when all of its prompt fits"""
    in_pieces: bool
    """prompts are split to fit the budget"""
    watermark: float
    """share of the memory that an admission leaves free while anything runs"""
    threshold: int = 0
    """most tokens of one request, while there are others; 0: as many as the budget has"""


@mypyc_attr(allow_interpreted_subclasses=True)
class Steps:
    """Decides the steps of one server.

    Attributes
    ----------
    in_turn : bool
        Whether who comes can enter only behind all who wait.
    ends_steps : bool
        Whether it wants to know when a step is over (`end_step`).
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.in_turn, self.ends_steps = True, False

    @abstractmethod
    def decide(self) -> None:
        """Decide the step that starts now; who is in `departed` then leaves."""

    def finish(self, request: Request) -> None:
        """A request has its last token: its memory is free for the next step, or for the one after it."""
        if self.server.rules.known_late:
            self.server.depart_late(request)
        else:
            self.server.finish(request)

    def end_step(self) -> None:
        """A step is over: its tokens are there, and it was said who has finished."""

    def rest(self) -> None:
        """Nobody runs or waits, and nothing is to be decided before somebody comes."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Around(Steps):
    """Another way, with something before and behind each decision."""

    def __init__(self, inner: Steps) -> None:
        super().__init__(inner.server)
        self.inner, self.in_turn, self.ends_steps = inner, inner.in_turn, inner.ends_steps

    def finish(self, request: Request) -> None:
        self.inner.finish(request)

    def end_step(self) -> None:
        self.inner.end_step()

    def rest(self) -> None:
        self.inner.rest()


@mypyc_attr(allow_interpreted_subclasses=True)
class Told(Around):
    """The allocator is told where a decision begins and ends: it knows whose prompts are introduced in it."""

    def __init__(self, inner: Steps, pieces: Pieces) -> None:
        super().__init__(inner)
        self._pieces = pieces

    def decide(self) -> None:
        self._pieces.new_step()
        self.inner.decide()
        self._pieces.decided()


def told(steps: Steps) -> Steps:
    """The same way, of which an allocator that knows where prompts end is told."""
    pieces = steps.server.memory.abilities.pieces
    return steps if pieces is None else Told(steps, pieces)
