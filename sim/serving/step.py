"""What was decided for the step that starts now: facts, written down as the server carries decisions out.

A scheduler decides by asking the server to admit, to compute, to evict, to swap. The server does so at once,
or says that there is no room, and notes it here. Whatever follows from a decision is derived from these
facts: what the step computes and costs, whether the next step may be like it, what the log says.
"""

from dataclasses import dataclass

from kvsim.sim.record.events import Refusal
from kvsim.sim.serving.request import Request


class Step:
    """The facts of one step.

    Attributes
    ----------
    changed : bool
        Whether anybody entered, computed a piece of a prompt, grew without a promise or left: then the next
        step may differ, and is decided anew.
    copies : bool
        Whether shared blocks may be copied in this step, and the next ones are like it but for that.
    paused : bool
        Whether the decoding sequences stand still.
    chunks : list of Request
        Who computes a prompt, or a piece of one.
    prefill_tokens, prefill_pairs, recomputed_tokens : int
        What these pieces are in all; (query, key) pairs of their causal attention; computed before.
    hit_tokens, charged_hit_tokens : int
        Prompt tokens of admissions that were cached; those of them that take up budget all the same.
    evicted_finished : tuple of int
        Rows of those preempted whose last token was under way, so that they finished all the same.
    evictions, departures : int
        How many were preempted, by recomputation or swapping; how often memory came back otherwise.
    swapped_in_blocks, swapped_out_blocks : int
        Blocks that come from the host pool and go there.
    copied_before, cow_copies_before : int
        The allocator's counts of copied slots, and of copies on write, when the step began.
    rejected : tuple of (int, str, int)
        Rows of requests that were dropped, and why.
    no_room : bool
        Whether the head of the queue was refused memory; of the last decision, where several were equal.
    asks_by_cached : bool
        Whether how much it asks for depends on how much of it is cached: spans must leave that alone.
    repeats : int
        Most steps, this one included, for which the decision holds; 0: as long as nothing happens.
    refusal : Refusal or None
        The head of the queue, if it found no room; kept only where events are written down.
    """

    __slots__ = (
        "asks_by_cached",
        "changed",
        "charged_hit_tokens",
        "chunks",
        "copied_before",
        "copies",
        "cow_copies_before",
        "departures",
        "evicted_finished",
        "evictions",
        "hit_tokens",
        "no_room",
        "paused",
        "prefill_pairs",
        "prefill_tokens",
        "recomputed_tokens",
        "refusal",
        "rejected",
        "repeats",
        "swapped_in_blocks",
        "swapped_out_blocks",
    )

    def __init__(self) -> None:
        self.begin(0, 0)

    def begin(self, copied_before: int, cow_copies_before: int) -> None:
        """Forget the last step: another one is to be decided."""
        self.changed = self.copies = self.paused = self.no_room = self.asks_by_cached = False
        self.chunks: list[Request] = []
        self.prefill_tokens = self.prefill_pairs = self.recomputed_tokens = 0
        self.hit_tokens = self.charged_hit_tokens = 0
        self.evictions = self.departures = self.repeats = 0
        self.swapped_in_blocks = self.swapped_out_blocks = 0
        self.copied_before = copied_before
        self.cow_copies_before = cow_copies_before
        self.evicted_finished: tuple[int, ...] = ()
        self.rejected: tuple[tuple[int, str, int], ...] = ()
        self.refusal: Refusal | None = None

    @property
    def budget_spent(self) -> int:
        """Tokens of the budget that prompts took."""
        return self.prefill_tokens + self.charged_hit_tokens

    @property
    def moves_blocks(self) -> bool:
        """Whether anything goes to the host pool or comes from there."""
        return self.swapped_in_blocks > 0 or self.swapped_out_blocks > 0

    def compute(self, request: Request, start: int, tokens: int) -> None:
        """Compute `tokens` of a prompt behind the first `start`."""
        self.changed = True
        self.chunks.append(request)
        self.prefill_tokens += tokens
        self.prefill_pairs += tokens * start + tokens * (tokens + 1) // 2
        if start < request.reached:
            self.recomputed_tokens += min(start + tokens, request.reached) - start

    def evict(self) -> None:
        """Somebody is preempted."""
        self.changed = True
        self.evictions += 1

    def reject(self, row: int, reason: str, preemptions: int) -> None:
        """A request is dropped: it can never be served, and was preempted so often before that was seen."""
        self.changed = True
        self.departures += 1
        self.rejected += ((row, reason, preemptions),)


@dataclass
class Totals:
    """What was counted since the start."""

    preemptions: int = 0
    """by recomputation"""
    swap_outs: int = 0
    """preemptions by swapping"""
    swapped_in_blocks: int = 0
    swapped_out_blocks: int = 0
    fragmented_refusals: int = 0
    """requests that were refused although enough was free in total"""
    hit_tokens: int = 0
    """prompt tokens of admissions that were cached"""
    admitted_slots: int = 0
    """that admissions took; counted where free slots may be useless"""


@dataclass
class UpkeepTotals:
    """What an allocator did beside lending since the start (sim/serving/upkeep.py)."""

    maps: int = 0
    unmaps: int = 0
    waited_ps: int = 0
    """for which steps waited for calls to the driver"""
    hidden_ps: int = 0
    """of work after steps that was over before the next step was"""
    exceeded_ps: int = 0
    """by which such work was longer than the step beside it"""
