"""What a scheduler decided for one step, as a record that can be read and printed.

    Decision(decodes=5, chunks=[3:512, 7:128], prefill_tokens=640, prefill_pairs=139584, hit_tokens=64)

A scheduler decides by asking the server to admit, to compute, to preempt, to swap. The server does so at
once, or says that there is no room, and enters it here; nobody else writes. Whatever follows from a decision
is derived from its record: what the step computes and costs, whether the next step may be like it, what the
log says. What fast-forward adds to it is a span of equal steps (sim/record/span.py).
"""

from typing import Final, NamedTuple

from kvsim.sim.record.events import Refusal
from kvsim.sim.serving.request import Request

NEVER_PS: Final = 1 << 63
"""Later than anything."""
NOBODY: list[Request] = []

NAMES = (
    *("decodes", "chunks", "prefill_tokens", "prefill_pairs", "recomputed_tokens"),
    *(
        "draft_tokens",
        "draft_passes",
        "hit_tokens",
        "charged_hit_tokens",
        "changed",
        "copies",
        "paused",
        "spent",
        "repeats",
        "until_ps",
    ),
    *("preemptions", "displaced", "departures", "preempted_finished", "rejected"),
    *(
        "swapped_in_blocks",
        "swapped_out_blocks",
        "copied_slots",
        "cow_copies",
        "delay_ps",
        "load",
        "no_room",
        "asks_by_cached",
    ),
)
"""What is printed, where there is anything to say."""


class LayerLoad(NamedTuple):
    """Keys and values that come to the GPU layer by layer, while the step computes those that are there.

    load      |1|2|3|4|
    compute     |1 |2 |3 |4 |
    """

    first_ps: int
    """when those of the first layer are there, counted from the decision"""
    last_ps: int
    """when those of the last one are"""
    layers: int

    def end_ps(self, ready_ps: int, compute_ps: int) -> int:
        """When a step ends that may begin at `ready_ps`; rounded up."""
        last_layer_ps = -(-compute_ps // self.layers)
        return max(max(ready_ps, self.first_ps) + compute_ps, self.last_ps + last_layer_ps)


class Decision:
    """One step, as decided.

    Attributes
    ----------
    decodes : int
        Sequences that get a token.
    chunks : list of Request
        Who computes a prompt, or a piece of one; printed as request:token up to which it is computed then.
    prefill_tokens, prefill_pairs, recomputed_tokens : int
        What these pieces are in all; (query, key) pairs of their causal attention; computed before.
    draft_tokens, draft_passes : int
        Tokens that are computed to verify drafts, or in vain; passes of the draft behind the step.
    vain_tokens : int
        Of the draft tokens, those that only this step computes: the next ones are like it but for them.
    hit_tokens, charged_hit_tokens : int
        Prompt tokens of admissions that were cached; those of them that take up budget all the same.
    changed : bool
        Whether anybody entered, computed a piece of a prompt, grew without a promise or left: then no step
        behind it is like it.
    copies : bool
        Whether shared blocks may be copied in this step, and the next ones are like it but for that.
    paused : bool
        Whether the decoding sequences stand still.
    spent : bool
        Whether it takes its time even if it computes nothing: what comes next is known only behind it.
    repeats : int
        Most steps, this one included, for which the decision holds; 0: as long as nothing happens.
    preemptions, departures : int
        How many were preempted, by recomputation or swapping; how often memory came back otherwise.
    displaced : int
        Of those preempted, who gave way to the head of the queue, by the policy: they keep nobody out.
    preempted_finished : tuple of int
        Rows of those preempted whose last token was under way, so that they finished all the same.
    rejected : tuple of (int, str, int)
        Rows of requests that were dropped, why, and how often they had been preempted.
    swapped_in_blocks, swapped_out_blocks : int
        Blocks that come from the host pool and go there.
    copied_slots, cow_copies : int
        Slots that were copied; copies on write among the copies.
    delay_ps : int
        By which it begins later: it waits for transfers to or from a tier below.
    load : LayerLoad or None
        What comes from there while it computes.
    no_room : bool
        Whether the head of the queue was refused memory.
    until_ps : int
        The decision holds for steps that begin before this; `NEVER_PS`: however late.
    stands : bool
        Whether it holds whoever comes: nobody enters before somebody leaves.
    asks_by_cached : bool
        Whether how much it asks for depends on how much of it is cached: spans must leave that alone.
    refusal : Refusal or None
        The head of the queue, if it found no room; kept only where events are written down.
    """

    decodes: int = 0
    chunks: list[Request] = NOBODY
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    recomputed_tokens: int = 0
    draft_tokens: int = 0
    draft_passes: int = 0
    vain_tokens: int = 0
    hit_tokens: int = 0
    charged_hit_tokens: int = 0
    changed: bool = False
    copies: bool = False
    paused: bool = False
    spent: bool = False
    repeats: int = 0
    preemptions: int = 0
    displaced: int = 0
    departures: int = 0
    preempted_finished: tuple[int, ...] = ()
    rejected: tuple[tuple[int, str, int], ...] = ()
    swapped_in_blocks: int = 0
    swapped_out_blocks: int = 0
    copied_slots: int = 0
    cow_copies: int = 0
    delay_ps: int = 0
    load: LayerLoad | None = None
    no_room: bool = False
    stands: bool = False
    asks_by_cached: bool = False
    until_ps: int = NEVER_PS
    refusal: Refusal | None = None

    def __repr__(self) -> str:
        said = {name: getattr(self, name) for name in NAMES}
        if self.chunks:
            said["chunks"] = f"[{', '.join(f'{one.index}:{one.computed}' for one in self.chunks)}]"
        told = [f"{name}={value}" for name, value in said.items() if value and value != NEVER_PS]
        return f"Decision({', '.join(told)})"

    @property
    def budget_spent(self) -> int:
        """Tokens of the budget that prompts took."""
        return self.prefill_tokens + self.charged_hit_tokens

    def computes(self) -> bool:
        """Whether there is anything to do: tokens to compute, or blocks to move to the host pool or back."""
        if self.decodes or self.chunks:
            return True
        return self.swapped_in_blocks > 0 or self.swapped_out_blocks > 0

    def compute(self, request: Request, start: int, tokens: int) -> None:
        """Compute `tokens` of a prompt behind the first `start`."""
        self.changed = True
        if not self.chunks:
            self.chunks = []
        self.chunks.append(request)
        self.prefill_tokens += tokens
        self.prefill_pairs += tokens * start + tokens * (tokens + 1) // 2
        if start < request.reached:
            self.recomputed_tokens += min(start + tokens, request.reached) - start

    def undo(self, request: Request, start: int, tokens: int) -> None:
        """Take `compute` back: it makes room for another one of the same step."""
        self.chunks.remove(request)
        self.prefill_tokens -= tokens
        self.prefill_pairs -= tokens * start + tokens * (tokens + 1) // 2
        if start < request.reached:
            self.recomputed_tokens -= min(start + tokens, request.reached) - start

    def preempt(self) -> None:
        """Somebody is preempted."""
        self.changed = True
        self.preemptions += 1

    def reject(self, row: int, reason: str, preemptions: int) -> None:
        """A request is dropped: it can never be served, and was preempted so often before that was seen."""
        self.changed = True
        self.departures += 1
        self.rejected += ((row, reason, preemptions),)
