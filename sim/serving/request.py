"""A request on its way through the server: waiting (-> loading) -> prefill -> decode -> finished.

One that decodes may be set aside, with all that it holds, and decode on later.

Objects exist only while a request waits or runs; before and after, it is a row of columns. A request with
several answers is one object per answer, its *samples*. Engines that fork schedule them together, as a Group.
"""

from typing import Final

from kvsim.allocators.base import Content, InvariantError
from kvsim.sim.serving.facts import UNTOLD, Facts


class State:
    """A request's state: small integers, because they are read often."""

    WAITING: Final = 0
    PREFILL: Final = 1
    DECODE: Final = 2
    SWAPPED: Final = 3
    FINISHED: Final = 4
    LOADING: Final = 5
    ASIDE: Final = 6


NAMES = ("waiting", "prefill", "decode", "swapped", "finished", "loading", "set aside")
SUCCESSORS = (
    (State.PREFILL, State.LOADING),
    (State.DECODE, State.FINISHED, State.WAITING),
    (State.FINISHED, State.WAITING, State.SWAPPED, State.PREFILL, State.ASIDE),
    (State.DECODE, State.FINISHED),
    (),
    (State.PREFILL,),
    (State.DECODE, State.WAITING),
)
"""Allowed moves by state; back to WAITING is preemption, to PREFILL a step without a token."""
MOVES: Final = frozenset(10 * state + after for state, moves in enumerate(SUCCESSORS) for after in moves)
"""The allowed moves as 10 * from + to."""


class Request:
    """One request.

    While it decodes, its tokens are not counted one by one: it holds `base + clock` of them, and `clock`
    counts the server's decode steps. When it stops, sim/serving/progress.py writes them back.
    """

    __slots__ = (
        "arrival_ps",
        "base",
        "computed",
        "content",
        "facts",
        "final_tokens",
        "finish_clock",
        "first_scheduled_ps",
        "first_scheduled_step",
        "first_token_ps",
        "first_token_step",
        "fragmented",
        "generated",
        "group",
        "index",
        "internal",
        "joined_as",
        "known_tokens",
        "last_token_ps",
        "open_stream",
        "outgrown",
        "output_tokens",
        "own",
        "preemptions",
        "priority",
        "prompt_tokens",
        "reached",
        "sample",
        "seq",
        "state",
        "stuck_at",
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
        self.outgrown = 0  # reservations that were too short for its answer
        self.stuck_at = 0, 0  # tokens for which, and known, it found no room although no other had any
        self.reached = 0  # most tokens ever computed, which a preemption discards
        self.internal = 0  # allocated slots that will never be written
        self.joined_as = -1  # its id when it began to decode, by which progress knows it
        self.fragmented = False  # was it ever refused although enough memory was free in total?
        self.content: Content = ()  # the part of its text that it may share with others
        self.open_stream: int | None = None  # the stream of its answer, if others may share that
        self.own = index  # names the rest of its text, which no other request or sample has
        self.sample = 0  # which answer to the prompt
        self.priority = self.arrival_ps = 0
        self.group: Group | None = None
        self.facts: Facts = UNTOLD  # what the trace says about it, if a policy reads that
        self.first_scheduled_ps: int | None = None
        self.first_token_ps: int | None = None

    def move(self, state: int) -> None:
        """Change the `State`, along the allowed transitions only."""
        if 10 * self.state + state not in MOVES:
            raise InvariantError(f"request {self.index} cannot go from {NAMES[self.state]} to {NAMES[state]}")
        self.state = state

    @property
    def its_group(self) -> "Group":
        """The group that it belongs to."""
        if self.group is None:
            raise InvariantError(f"request {self.index} belongs to no group")
        return self.group

    @property
    def is_decoding(self) -> bool:
        """Whether its prompt is computed and its answer is not."""
        return self.state is State.DECODE

    def set_output(self, output_tokens: int) -> None:
        """Set the length of the answer, before the request runs."""
        self.output_tokens = output_tokens
        self.final_tokens = self.prompt_tokens + output_tokens - 1

    def as_sample(self, sample: int, output_tokens: int) -> "Request":
        """Another answer to the same prompt; only the prompt's text may be shared."""
        other = Request(self.index, self.prompt_tokens, output_tokens)
        other.sample, other.own = sample, self.own + sample
        other.priority, other.arrival_ps, other.group = self.priority, self.arrival_ps, self.group
        other.facts = self.facts
        other.content = prefix_of(self.content, self.prompt_tokens)
        return other

    def write(self, content: Content) -> None:
        """Set the part of its text that it may share with others."""
        self.content = content
        if sum(length for _, _, length in content) > self.prompt_tokens:
            self.open_stream = content[-1][0]

    seq: int  # id of its current stay in memory, in admission order; never reused
    base: int
    finish_clock: int  # decode clock at which it has its last token
    last_token_ps: int  # when it last began or stopped decoding
    first_scheduled_step: int
    first_token_step: int


class Group:
    """The sequences of one request that an engine schedules, preempts and swaps together.

    `sequences` are the live ones, in the order in which they write; `lengths` are the answers still to be
    forked when the prompt is computed.
    """

    __slots__ = ("beam_width", "index", "lengths", "preemptions", "sequences")

    def __init__(self, first: Request, lengths: list[int], beam_width: int) -> None:
        self.index = first.index  # requests are numbered in order of arrival
        self.sequences = [first]
        self.lengths = lengths
        self.beam_width = beam_width  # 1: no beam search
        self.preemptions = 0

    @property
    def seats(self) -> int:
        """The most sequences that it may have from now on."""
        if self.beam_width > 1:
            return self.beam_width
        return max(len(self.lengths), len(self.sequences))


def prefix_of(content: Content, tokens: int) -> Content:
    """The first `tokens` tokens of a text."""
    runs: list[tuple[int, int, int]] = []
    for stream, first, length in content:
        if tokens <= 0:
            break
        runs.append((stream, first, min(length, tokens)))
        tokens -= length
    return tuple(runs)
