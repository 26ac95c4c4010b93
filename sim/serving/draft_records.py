"""What a scheduler with drafts knows: its rules, its view of requests, and what a step computes of them."""

from typing import NamedTuple

from kvsim.sim.serving.request import Request


class DraftRules(NamedTuple):
    """What the proposer asks of the scheduler.

    Attributes
    ----------
    most : int
        Drafts proposed at a time.
    lookahead : int
        Slots for the proposals after a step's tokens.
    kept_back : int
        Fewest known tokens that a piece of a prompt leaves, unless it is the last piece.
    hash_lookahead : int
        Tokens after a block that its hash covers.
    slots : int
        Part of the budget that a separate draft model takes per request.
    to_the_end : bool
        Whether it proposes nothing beyond the longest sequence.
    by_batch : tuple of int
        Drafts proposed at a time, by the number of requests in a step; empty: always `most`.
    """

    most: int
    lookahead: int = 0
    kept_back: int = 0
    hash_lookahead: int = 0
    slots: int = 0
    to_the_end: bool = False
    by_batch: tuple[int, ...] = ()


class Seen:
    """A request as its scheduler sees it.

    Attributes
    ----------
    tokens, computed, drafts : int
        Known tokens; computed ones, including unverified drafts; proposals that it holds.
    placeholders, in_flight : int
        Most tokens that a step under way will give; tokens that it computes.
    in_prompt : bool
        Whether its last step left some of the prompt.
    capacity, published : int
        Tokens for which its table has room; those of them that were published.
    events, valid : int
        Steps that gave it tokens; drafts that were proposed in the last of them.
    """

    __slots__ = (
        "capacity",
        "computed",
        "drafts",
        "events",
        "in_flight",
        "in_prompt",
        "placeholders",
        "published",
        "tokens",
        "valid",
    )

    def __init__(self) -> None:
        self.tokens = self.computed = self.drafts = 0
        self.placeholders = self.in_flight = 0
        self.in_prompt = False
        self.events = self.valid = self.capacity = self.published = 0


class Taken:
    """What a step computes of one request, and the outcome.

    Attributes
    ----------
    start, tokens, drafts : int
        Tokens computed before, as far as the engine knows; scheduled tokens; drafts among them.
    ends : bool
        Whether it gives the last token even if all drafts are rejected.
    accepted, returned, kept : int
        Drafts that are right; tokens that it gives; those of them before the end of the answer.
    """

    __slots__ = (
        "accepted",
        "drafts",
        "ends",
        "in_prompt",
        "kept",
        "padded",
        "request",
        "returned",
        "seen",
        "seq",
        "start",
        "tokens",
    )

    def __init__(self, request: Request, seen: Seen, tokens: int, drafts: int, padded: bool = False) -> None:
        self.request, self.seen, self.seq = request, seen, request.seq
        self.start, self.tokens, self.drafts, self.padded = seen.computed, tokens, drafts, padded
        self.accepted = self.returned = self.kept = 0
        certain, placeholders = seen.computed + tokens - drafts + 1, seen.placeholders
        if placeholders > 1:
            certain -= placeholders - 1
        self.ends, self.in_prompt = certain > request.final_tokens, False
