"""How the steps of a server are decided: a scheduler with several ways chooses one, with its server.

    decide      the step that starts now; the server carries it out and records it
    finish      a request has its last token
    end_step    the step is over
    rest        no requests are left

Drafts are one way (drafts.py), a tier below the memory is another (lower_tier.py). Each way asks only about
features that it has.
"""

from abc import abstractmethod
from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from kvsim.allocators.protocols import Pieces
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server


@dataclass(frozen=True)
class Limits:
    """Limits of a step of vLLM V1, however it is decided."""

    budget: int
    seats: int
    longest: int
    whole_prompt: bool
    """a request enters only if its whole prompt fits"""
    in_pieces: bool
    """prompts are split to fit the budget"""
    watermark: float
    """share of the memory that an admission leaves free while anything runs"""
    threshold: int = 0
    """most tokens of one request, while there are others; 0: no limit but the budget"""


@mypyc_attr(allow_interpreted_subclasses=True)
class Steps:
    """Decides the steps of one server.

    Attributes
    ----------
    in_turn : bool
        Whether a new request can enter only after all that wait.
    ends_steps : bool
        Whether it must be told when a step is over (`end_step`).
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.in_turn, self.ends_steps = True, False

    @abstractmethod
    def decide(self) -> None:
        """Decide the step that starts now; requests in `departed` then leave."""

    def finish(self, request: Request) -> None:
        """A request has its last token: its memory is free for the next step, or the one after it."""
        if self.server.rules.known_late:
            self.server.depart_late(request)
        else:
            self.server.finish(request)

    def end_step(self) -> None:
        """A step is over: its tokens and its finished requests are known."""

    def rest(self) -> None:
        """No request runs or waits; there is nothing to decide until one comes."""

    def head(self) -> Request | None:
        """The request that waits first, if it is not in the queue."""
        return None

    def held_back(self) -> str:
        """Why the head of the queue was passed over in this step; "": it was not."""
        return ""


@mypyc_attr(allow_interpreted_subclasses=True)
class Around(Steps):
    """Another way, with something added before and after each decision."""

    def __init__(self, inner: Steps) -> None:
        super().__init__(inner.server)
        self.inner, self.in_turn, self.ends_steps = inner, inner.in_turn, inner.ends_steps

    def finish(self, request: Request) -> None:
        self.inner.finish(request)

    def end_step(self) -> None:
        self.inner.end_step()

    def rest(self) -> None:
        self.inner.rest()

    def head(self) -> Request | None:
        return self.inner.head()

    def held_back(self) -> str:
        return self.inner.held_back()


@mypyc_attr(allow_interpreted_subclasses=True)
class Told(Around):
    """Tells the allocator when a decision begins and ends, so that it knows which prompts enter in it."""

    def __init__(self, inner: Steps, pieces: Pieces) -> None:
        super().__init__(inner)
        self._pieces = pieces

    def decide(self) -> None:
        self._pieces.new_step()
        self.inner.decide()
        self._pieces.decided()


def told(steps: Steps) -> Steps:
    """The same way; an allocator that knows where prompts end is told of its decisions."""
    pieces = steps.server.memory.abilities.pieces
    return steps if pieces is None else Told(steps, pieces)
