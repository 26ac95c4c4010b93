"""What a scheduler decided for one step, as a record that can be read and printed.

    Decision(decodes=5, prompts=Prompts(chunks=[3:512, 7:128], tokens=640, pairs=139584), changed=True)

A scheduler decides by asking the server to admit, compute, preempt and swap. The server does so immediately,
or says that there is no room, and writes it down here; nothing else writes. Everything else follows from this
record: what the step computes and costs, whether the next step may equal it, what the log says. Fast-forward
extends it to a span of equal steps (sim/record/span.py).

Most steps only decode. What the others do is in records of its own, each made when it is first written.
"""

from typing import ClassVar, Final, NamedTuple

from kvsim.sim.record.events import Displacer, Refusal
from kvsim.sim.serving.request import Request

NEVER_PS: Final = 1 << 63
"""Later than anything."""
NOBODY: list[Request] = []


class Record:
    """Prints the fields that are set."""

    FIELDS: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        said = [(name, self._shown(name)) for name in self.FIELDS]
        told = [f"{name}={value}" for name, value in said if value and value != NEVER_PS]
        return f"{type(self).__name__}({', '.join(told)})"

    def _shown(self, name: str) -> object:
        return getattr(self, name)


class Prompts(Record):
    """What a step computes of prompts.

    Attributes
    ----------
    chunks : list of Request
        Requests that compute a prompt or a chunk of one; printed as request:computed tokens after the step.
    tokens, pairs, recomputed_tokens : int
        Tokens of these chunks; (query, key) pairs of their causal attention; tokens computed before.
    hit_tokens, charged_hit_tokens : int
        Cached prompt tokens of admissions; those that count against the token budget nevertheless.
    """

    FIELDS: ClassVar = (
        *("chunks", "tokens", "pairs", "recomputed_tokens", "hit_tokens", "charged_hit_tokens"),
    )

    def __init__(self) -> None:
        self.chunks: list[Request] = []
        self.tokens = self.pairs = self.recomputed_tokens = self.hit_tokens = self.charged_hit_tokens = 0

    def _shown(self, name: str) -> object:
        if name != "chunks" or not self.chunks:
            return super()._shown(name)
        return f"[{', '.join(f'{one.index}:{one.computed}' for one in self.chunks)}]"


NO_PROMPTS = Prompts()
"""For reading: nothing of any prompt."""


class DraftWork(Record):
    """What a step computes for speculative decoding.

    Attributes
    ----------
    tokens, passes : int
        Tokens computed to verify drafts, or in vain; passes of the draft model after the step.
    vain_tokens : int
        Of these tokens, those that only this step computes: the next steps equal it otherwise.
    """

    FIELDS: ClassVar = ("tokens", "passes", "vain_tokens")

    def __init__(self) -> None:
        self.tokens = self.passes = self.vain_tokens = 0


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


class Moved(Record):
    """What a step copies, swaps and loads.

    Attributes
    ----------
    swapped_in_blocks, swapped_out_blocks : int
        Blocks from and to the host pool.
    copied_slots, cow_copies : int
        Slots that were copied; how many of the copies were copy-on-write.
    delay_ps : int
        How much later the step begins because it waits for transfers to or from a lower tier.
    load : LayerLoad or None
        What is loaded from there while the step computes.
    """

    FIELDS: ClassVar = (
        *("swapped_in_blocks", "swapped_out_blocks", "copied_slots", "cow_copies", "delay_ps", "load"),
    )

    def __init__(self) -> None:
        self.swapped_in_blocks = self.swapped_out_blocks = self.copied_slots = self.cow_copies = 0
        self.delay_ps = 0
        self.load: LayerLoad | None = None


NO_MOVES = Moved()
"""For reading: nothing is moved."""


class Refused(Record):
    """Requests that leave unserved, finished although preempted, or found no room.

    Attributes
    ----------
    rejected : list of (int, str, int)
        Rows of dropped requests, the reason, and how often they had been preempted.
    preempted_finished : list of int
        Rows of preempted requests whose last token was already under way, so that they finished.
    head : Refusal or None
        The head of the queue if it found no room; kept only if events are recorded.
    """

    FIELDS: ClassVar = ("rejected", "preempted_finished")

    def __init__(self) -> None:
        self.rejected: list[tuple[int, str, int]] = []
        self.preempted_finished: list[int] = []
        self.head: Refusal | None = None


class Validity(Record):
    """For which later steps a decision holds, if not until something happens.

    Attributes
    ----------
    steps : int
        Most steps, the first included; 0: any number.
    until_ps : int
        It holds for steps that begin before this; `NEVER_PS`: always.
    stands : bool
        Whether arrivals cannot change it: no request enters before another leaves.
    copies : bool
        Whether shared blocks may be copied in the first step; the next steps equal it otherwise.
    asks_by_cached : bool
        Whether the head's demand depends on how much of it is cached: spans must not change that.
    """

    FIELDS: ClassVar = ("steps", "until_ps", "stands", "copies", "asks_by_cached")

    def __init__(self) -> None:
        self.steps, self.until_ps = 0, NEVER_PS
        self.stands = self.copies = self.asks_by_cached = False


class Decision(Record):
    """One step, as decided.

    Attributes
    ----------
    decodes : int
        Sequences that get a token.
    prompts, drafted, moved, refused, valid : Prompts, DraftWork, Moved, Refused, Validity or None
        What else it does, and how long it holds; None: nothing else, until something happens.
    changed : bool
        Whether a request entered, computed a chunk, grew without a promise or left: no later step equals it.
    paused : bool
        Whether the decoding sequences stand still.
    spent : bool
        Whether the step takes time even if it computes nothing: what comes next is known only after it.
    no_room : bool
        Whether the head of the queue was refused memory.
    preemptions, departures : int
        Preemptions, by recomputation or swapping; other occasions on which memory was freed.
    displaced : int
        Preemptions by the policy in favour of the head of the queue; they keep nothing out.
    lost : list of Request or None
        Those that lost their memory to the head of the queue, if they may not enter again in this step.
    displacer : Displacer or None
        That head, and why it goes first; also if those that give way keep their memory.
    """

    FIELDS: ClassVar = (
        *("decodes", "prompts", "drafted", "moved", "changed", "paused", "spent", "no_room"),
        *("preemptions", "displaced", "departures", "refused", "valid"),
    )

    decodes: int = 0
    prompts: Prompts | None = None
    drafted: DraftWork | None = None
    moved: Moved | None = None
    refused: Refused | None = None
    valid: Validity | None = None
    changed: bool = False
    paused: bool = False
    spent: bool = False
    no_room: bool = False
    preemptions: int = 0
    displaced: int = 0
    lost: list[Request] | None = None
    departures: int = 0
    displacer: Displacer | None = None

    # -- what it reads as ---------------------------------------------------------------------

    @property
    def chunks(self) -> list[Request]:
        """Requests that compute a prompt or a chunk of one."""
        return self.prompts.chunks if self.prompts is not None else NOBODY

    @property
    def budget_spent(self) -> int:
        """Tokens of the budget that prompts took."""
        prompts = self.prompts
        return prompts.tokens + prompts.charged_hit_tokens if prompts is not None else 0

    @property
    def departed(self) -> int:
        """Requests that had finished, but had their seats until the step was decided."""
        refused = self.refused
        return self.departures - (len(refused.rejected) if refused is not None else 0)

    @property
    def until_ps(self) -> int:
        """The decision holds for steps that begin before this; `NEVER_PS`: always."""
        return self.valid.until_ps if self.valid is not None else NEVER_PS

    def computes(self) -> bool:
        """Whether there is anything to do: tokens to compute, or blocks to move to or from the host pool."""
        if self.decodes or self.chunks:
            return True
        moved = self.moved
        return moved is not None and (moved.swapped_in_blocks > 0 or moved.swapped_out_blocks > 0)

    # -- what is written ----------------------------------------------------------------------

    def of_prompts(self) -> Prompts:
        """The record of prompts, to write to."""
        if self.prompts is None:
            self.prompts = Prompts()
        return self.prompts

    def of_drafts(self) -> DraftWork:
        """The record of drafts, to write to."""
        if self.drafted is None:
            self.drafted = DraftWork()
        return self.drafted

    def of_moves(self) -> Moved:
        """The record of copies, swaps and loads, to write to."""
        if self.moved is None:
            self.moved = Moved()
        return self.moved

    def of_refusals(self) -> Refused:
        """The record of those that were refused, to write to."""
        if self.refused is None:
            self.refused = Refused()
        return self.refused

    def of_validity(self) -> Validity:
        """How long the decision holds, to write to."""
        if self.valid is None:
            self.valid = Validity()
        return self.valid

    def compute(self, request: Request, start: int, tokens: int) -> None:
        """Compute `tokens` of a prompt after its first `start`."""
        self.changed = True
        prompts = self.of_prompts()
        prompts.chunks.append(request)
        prompts.tokens += tokens
        prompts.pairs += tokens * start + tokens * (tokens + 1) // 2
        if start < request.reached:
            prompts.recomputed_tokens += min(start + tokens, request.reached) - start

    def undo(self, request: Request, start: int, tokens: int) -> None:
        """Undo `compute`: the request makes room for another one in the same step."""
        prompts = self.of_prompts()
        prompts.chunks.remove(request)
        prompts.tokens -= tokens
        prompts.pairs -= tokens * start + tokens * (tokens + 1) // 2
        if start < request.reached:
            prompts.recomputed_tokens -= min(start + tokens, request.reached) - start

    def preempt(self) -> None:
        """A request is preempted."""
        self.changed = True
        self.preemptions += 1

    def reject(self, row: int, reason: str, preemptions: int) -> None:
        """A request is dropped because it can never be served; it had been preempted this often."""
        self.changed = True
        self.departures += 1
        self.of_refusals().rejected.append((row, reason, preemptions))
