"""What a server counts from the start of a run to its end."""

from dataclasses import dataclass


@dataclass
class Totals:
    """What was counted since the start."""

    preemptions: int = 0
    """by recomputation"""
    futile: int = 0
    """preemptions since anybody had a token"""
    tokens: int = 0
    """decode steps and computed prompts by then: whether it grows, not what it is"""
    prompts: int = 0
    """prompts computed to their end, and so tokens that prompts gave"""
    swap_outs: int = 0
    """preemptions by swapping"""
    swapped_in_blocks: int = 0
    swapped_out_blocks: int = 0
    fragmented_refusals: int = 0
    """requests that were refused although enough was free in total"""
    hit_tokens: int = 0
    """prompt tokens of admissions that were cached"""


@dataclass
class UpkeepTotals:
    """What an allocator did beside allocating since the start (sim/serving/upkeep.py)."""

    maps: int = 0
    unmaps: int = 0
    waited_ps: int = 0
    """for which steps waited for calls to the driver"""
    hidden_ps: int = 0
    """of work after steps that was over before the next step was"""
    exceeded_ps: int = 0
    """by which such work was longer than the step beside it"""


@dataclass
class TierTotals:
    """What went to a tier below the GPU's memory, and came back."""

    capacity_bytes: int = 0
    """of all GPUs of the replica together, as all bytes here"""
    held_bytes_ps: int = 0
    """the integral of what it holds"""
    peak_bytes: int = 0
    hit_tokens: int = 0
    """prompt tokens that were loaded from it instead of being computed"""
    loaded_bytes: int = 0
    stored_bytes: int = 0
    load_busy_ps: int = 0
    store_busy_ps: int = 0
    waited_requests: int = 0
    """loads for which a request waited"""
    waited_ps: int = 0
    """from the begin of such loads to the step in which their requests ran"""
    steps_waited_ps: int = 0
    """by which steps began later: they waited for transfers"""
    refused_stores: int = 0
    """offers that it had no room for"""
    evicted_bytes: int = 0
