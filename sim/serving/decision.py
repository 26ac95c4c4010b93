"""What a scheduler decided for one step, as a record that can be read and printed.

    Decision(decodes=5, chunks=[3:512, 7:128], prefill_tokens=640, prefill_pairs=139584, hit_tokens=64)

A scheduler decides by asking the server to admit, compute, preempt and swap. The server does so immediately,
or says that there is no room, and writes it down here; nothing else writes. Everything else follows from this
record: what the step computes and costs, whether the next step may equal it, what the log says. Fast-forward
extends it to a span of equal steps (sim/record/span.py).
"""

from typing import Final, NamedTuple

from kvsim.sim.record.events import Displacer, Refusal
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
"""Fields that are printed if they are set."""


class LayerLoad(NamedTuple):
    """Keys and values that are loaded layer by layer while the step computes the layers already there.

    load      |1|2|3|4|
    compute     |1 |2 |3 |4 |
    """

    first_ps: int
    """when the first layer has arrived, counted from the decision"""
    last_ps: int
    """when the last layer has"""
    layers: int

    def end_ps(self, ready_ps: int, compute_ps: int) -> int:
        """When a step that may begin at `ready_ps` ends, rounded up."""
        last_layer_ps = -(-compute_ps // self.layers)
        return max(max(ready_ps, self.first_ps) + compute_ps, self.last_ps + last_layer_ps)


class Decision:
    """One step, as decided.

    Attributes
    ----------
    decodes : int
        Sequences that get a token.
    chunks : list of Request
        Requests that compute a prompt or a chunk of one; printed as request:computed tokens after the step.
    prefill_tokens, prefill_pairs, recomputed_tokens : int
        Tokens of these chunks; (query, key) pairs of their causal attention; tokens computed before.
    draft_tokens, draft_passes : int
        Tokens computed to verify drafts, or in vain; passes of the draft model after the step.
    vain_tokens : int
        Of the draft tokens, those that only this step computes: the next steps equal it otherwise.
    hit_tokens, charged_hit_tokens : int
        Cached prompt tokens of admissions; those that count against the token budget nevertheless.
    changed : bool
        Whether a request entered, computed a chunk, grew without a promise or left: no later step equals it.
    copies : bool
        Whether shared blocks may be copied in this step; the next steps equal it otherwise.
    paused : bool
        Whether the decoding sequences stand still.
    spent : bool
        Whether the step takes time even if it computes nothing: what comes next is known only after it.
    repeats : int
        Most steps, this one included, for which the decision holds; 0: until something happens.
    preemptions, departures : int
        Preemptions, by recomputation or swapping; other occasions on which memory was freed.
    displaced : int
        Preemptions by the policy in favour of the head of the queue; they keep nothing out.
    displacer : Displacer or None
        That head, and why it goes first; also if those that give way keep their memory.
    preempted_finished : tuple of int
        Rows of preempted requests whose last token was already under way, so that they finished.
    rejected : tuple of (int, str, int)
        Rows of dropped requests, the reason, and how often they had been preempted.
    swapped_in_blocks, swapped_out_blocks : int
        Blocks from and to the host pool.
    copied_slots, cow_copies : int
        Slots that were copied; how many of the copies were copy-on-write.
    delay_ps : int
        How much later the step begins because it waits for transfers to or from a lower tier.
    load : LayerLoad or None
        What is loaded from there while the step computes.
    no_room : bool
        Whether the head of the queue was refused memory.
    until_ps : int
        The decision holds for steps that begin before this; `NEVER_PS`: always.
    stands : bool
        Whether arrivals cannot change the decision: no request enters before another leaves.
    asks_by_cached : bool
        Whether the head's demand depends on how much of it is cached: spans must not change that.
    refusal : Refusal or None
        The head of the queue if it found no room; kept only if events are recorded.
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
    displacer: Displacer | None = None

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
        """Whether there is anything to do: tokens to compute, or blocks to move to or from the host pool."""
        if self.decodes or self.chunks:
            return True
        return self.swapped_in_blocks > 0 or self.swapped_out_blocks > 0

    def compute(self, request: Request, start: int, tokens: int) -> None:
        """Compute `tokens` of a prompt after its first `start`."""
        self.changed = True
        if not self.chunks:
            self.chunks = []
        self.chunks.append(request)
        self.prefill_tokens += tokens
        self.prefill_pairs += tokens * start + tokens * (tokens + 1) // 2
        if start < request.reached:
            self.recomputed_tokens += min(start + tokens, request.reached) - start

    def undo(self, request: Request, start: int, tokens: int) -> None:
        """Undo `compute`: the request makes room for another one in the same step."""
        self.chunks.remove(request)
        self.prefill_tokens -= tokens
        self.prefill_pairs -= tokens * start + tokens * (tokens + 1) // 2
        if start < request.reached:
            self.recomputed_tokens -= min(start + tokens, request.reached) - start

    def preempt(self) -> None:
        """A request is preempted."""
        self.changed = True
        self.preemptions += 1

    def reject(self, row: int, reason: str, preemptions: int) -> None:
        """A request is dropped because it can never be served; it had been preempted this often."""
        self.changed = True
        self.departures += 1
        self.rejected += ((row, reason, preemptions),)
