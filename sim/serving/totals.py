"""What a server counts from the start of a run to its end."""

from dataclasses import dataclass, field, fields


@dataclass
class DraftTotals:
    """What happened to drafts since the start."""

    verified: int = 0
    """number of times that drafts of a sequence were verified"""
    drafted: int = 0
    """drafts that were verified"""
    accepted: int = 0
    """verified drafts that were right"""
    vain: int = 0
    """other tokens computed in vain: placeholders, and for requests that had finished"""
    rows: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """the first three, by row of the workload"""

    def count(self, row: int, drafts: int, accepted: int, verified: int = 1) -> None:
        """Drafts of a sequence of that request were verified, `verified` times."""
        self.verified += verified
        self.drafted += drafts
        self.accepted += accepted
        times, drafted, right = self.rows.get(row, (0, 0, 0))
        self.rows[row] = times + verified, drafted + drafts, right + accepted

    def add(self, other: "DraftTotals") -> None:
        """Add those of another server."""
        self.verified += other.verified
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.vain += other.vain
        self.rows |= other.rows


@dataclass
class Totals:
    """Counts since the start."""

    preemptions: int = 0
    """by recomputation"""
    futile: int = 0
    """preemptions since any request got a token"""
    tokens: int = 0
    """decode steps and computed prompts at that time; only whether it grows matters"""
    prompts: int = 0
    """prompts computed to their end, and thus tokens that prompts gave"""
    swap_outs: int = 0
    """preemptions by swapping"""
    swapped_in_blocks: int = 0
    swapped_out_blocks: int = 0
    thrown_tokens: int = 0
    """computed tokens of requests preempted by recomputation; a prefix cache may find some again"""
    fragmented_refusals: int = 0
    """requests that were refused although enough was free in total"""
    hit_tokens: int = 0
    """prompt tokens of admissions that were cached"""
    drafts: DraftTotals | None = None
    """what happened to drafts, if there are any"""
    tier: "TierTotals | None" = None
    """what went to a tier below the memory, if there is one"""


@dataclass
class UpkeepTotals:
    """What an allocator did besides allocating since the start (sim/serving/upkeep.py)."""

    maps: int = 0
    unmaps: int = 0
    waited_ps: int = 0
    """time that steps waited for calls to the driver"""
    hidden_ps: int = 0
    """time of work after steps that ended before the next step did"""
    exceeded_ps: int = 0
    """time by which such work was longer than the step beside it"""


@dataclass
class TierTotals:
    """What went to a tier below the GPU's memory, and came back."""

    capacity_bytes: int = 0
    """of all GPUs of the replica together, like all bytes here"""
    held_bytes: int = 0
    """now"""
    held_bytes_ps: int = 0
    """the integral of what it holds"""
    counted_bytes: int = 0
    counted_ps: int = 0
    """what it has held since when is not in it yet"""
    seen_ps: int = 0
    """when it last held this"""
    room_bytes_ps: int = 0
    """the integral of its size, over the time for which the replica was there"""
    peak_bytes: int = 0
    hit_tokens: int = 0
    """prompt tokens that were loaded from it instead of being computed"""
    hit_pairs: int = 0
    """(query, key) pairs of attention that computing these would have taken"""
    saved_ps: int = 0
    """time that computing these tokens would have taken, in full steps with nothing else"""
    loaded_bytes: int = 0
    stored_bytes: int = 0
    load_busy_ps: int = 0
    store_busy_ps: int = 0
    load_until_ps: int = 0
    store_until_ps: int = 0
    """when the link has moved all that is queued"""
    waited_requests: int = 0
    """loads for which a request waited; reads from HiCache's storage"""
    waited_ps: int = 0
    """from their begin to the step in which their requests ran, and while chunks for them came up from tiers
    further below; for reads, while it could have entered"""
    steps_waited_ps: int = 0
    """time by which steps began later because they waited for transfers"""
    promoted_tokens: int = 0
    """tokens that came up from tiers further below"""
    promoted_bytes: int = 0
    cascaded_bytes: int = 0
    """bytes that went on to those tiers"""
    refused_stores: int = 0
    """offers that it had no room for"""
    evicted_bytes: int = 0

    def count(self, held_bytes: int, now_ps: int) -> None:
        """It held so much since the last count. Products of large integers wait until that changes."""
        if held_bytes != self.counted_bytes:
            self.held_bytes_ps += self.counted_bytes * (self.seen_ps - self.counted_ps)
            self.counted_bytes, self.counted_ps = held_bytes, self.seen_ps
        self.seen_ps = now_ps

    def until(self, end_ps: int) -> "TierTotals":
        """The totals of a run that ends then: what is still queued on the link does not count."""
        found = TierTotals(**{each.name: getattr(self, each.name) for each in fields(TierTotals)})
        found.count(self.held_bytes, end_ps)
        found.held_bytes_ps += found.counted_bytes * (end_ps - found.counted_ps)
        found.load_busy_ps = max(0, self.load_busy_ps - max(0, self.load_until_ps - end_ps))
        found.store_busy_ps = max(0, self.store_busy_ps - max(0, self.store_until_ps - end_ps))
        return found

    def hit(self, here: int, below: int) -> None:
        """Load `below` tokens of a prompt after the first `here`."""
        self.hit_tokens += below
        self.hit_pairs += here * below + below * (below + 1) // 2
