"""A request on its way through the server: waiting -> prefill -> decode -> finished.

Objects exist only while a request waits or runs; before and after, it is a row of columns.
"""

from enum import Enum

from allocators.base import InvariantError


class State(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"

    successors: tuple["State", ...]
    """Allowed moves; back to WAITING is preemption."""


State.WAITING.successors = (State.PREFILL,)
State.PREFILL.successors = (State.DECODE, State.FINISHED, State.WAITING)
State.DECODE.successors = (State.FINISHED, State.WAITING)
State.FINISHED.successors = ()


class Request:
    """One request.

    While it decodes, its tokens are not counted one by one: it holds `base + clock` of them, where
    `clock` counts the decode steps of the server. `sync` in `sim/server.py` writes them back.
    """

    __slots__ = (
        "base",
        "computed",
        "final_tokens",
        "finish_clock",
        "first_scheduled_ps",
        "first_scheduled_step",
        "first_token_ps",
        "first_token_step",
        "fragmented",
        "generated",
        "index",
        "internal",
        "known_tokens",
        "last_token_ps",
        "output_tokens",
        "preemptions",
        "prompt_tokens",
        "reached",
        "seq",
        "state",
    )

    def __init__(self, index: int, prompt_tokens: int, output_tokens: int) -> None:
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.final_tokens = prompt_tokens + output_tokens - 1  # the last token is never stored
        self.state = State.WAITING
        self.computed = 0  # tokens whose key and value are stored
        self.generated = 0
        self.known_tokens = prompt_tokens  # prompt and answer so far: what a (re)computation must prefill
        self.preemptions = 0
        self.reached = 0  # most tokens ever computed: what a preemption throws away
        self.internal = 0  # slots that it holds and will never write
        self.fragmented = False  # was it ever refused although enough was free in total?
        self.first_scheduled_ps: int | None = None
        self.first_token_ps: int | None = None

    def move(self, state: State) -> None:
        """Change the state, along the allowed transitions only."""
        if state not in self.state.successors:
            raise InvariantError(f"request {self.index} cannot go from {self.state.value} to {state.value}")
        self.state = state

    seq: int  # id of its present stay in memory: admission order, never used twice
    base: int
    finish_clock: int  # decode clock at which its last token is there
    last_token_ps: int
    first_scheduled_step: int
    first_token_step: int
