"""Notes on surprising numbers of a fit, one sentence each."""

from collections.abc import Sequence
from typing import NamedTuple

from kvsim.sim.deployment.vllm_defaults import VllmDefaults
from kvsim.sim.fit.capacity import Capacity
from kvsim.sim.kv.blocks import Paged
from kvsim.sim.kv.pages import Group, Request

USUAL_BLOCK_TOKENS = 64
"""The largest block size of models with uniform layers."""


class Numbers(NamedTuple):
    """Input of the notes: the settings, the pages, their groups and the pool's capacity."""

    engine: VllmDefaults
    paged: Paged
    groups: Sequence[Group]
    capacity: Capacity
    request: Request


def notes_of(fit: Numbers, hit_step_tokens: int) -> list[str]:
    """The notes of an answer; prefixes hit in steps of `hit_step_tokens`."""
    notes = _printed_size(fit) if fit.capacity.num_blocks else []
    notes += _alignment(fit)
    notes += _groups(fit)
    if fit.engine.enable_prefix_caching and hit_step_tokens > USUAL_BLOCK_TOKENS:
        notes.append(f"prefixes hit in steps of {hit_step_tokens:,} tokens: shorter ones are computed again")
    return notes


def _printed_size(fit: Numbers) -> list[str]:
    """That the size in the log is a derived number, and how it is derived."""
    capacity, request = fit.capacity, fit.request
    slots = capacity.num_blocks * fit.groups[0].page.block_size
    notes = []
    if capacity.kv_tokens != slots or len(fit.groups) > 1:
        notes.append(
            f"the printed {capacity.kv_tokens:,} tokens are int(concurrency x max_model_len) = "
            f"int({capacity.num_blocks:,} / {capacity.blocks_per_request:,} x {request.max_model_len:,}), "
            "not blocks x block size: a request of another length takes another share"
        )
    if any(group.kind in ("sliding_window", "chunked_local_attention") for group in fit.groups):
        doubled = (
            " (twice the token budget, as scheduling is asynchronous)" if fit.engine.async_scheduling else ""
        )
        notes.append(
            f"it also depends on the {request.in_flight_tokens:,} tokens in flight{doubled}: windows and "
            "chunks keep those too, and a smaller --max-num-batched-tokens prints a larger size of the same "
            "blocks"
        )
    return notes


def _alignment(fit: Numbers) -> list[str]:
    """How a recurrent state enlarged the block."""
    paged = fit.paged
    if paged.aligned_from is None:
        return []
    page = paged.block_size * paged.token_bytes
    return [
        f"a state of {paged.state_bytes:,} bytes is worth {paged.aligned_from:,} tokens of "
        f"{paged.token_bytes:,} bytes: blocks of {paged.block_size:,} tokens (steps of {paged.step}), "
        f"{100 * (page - paged.state_bytes) / page:.1f} % of a state's page is padding; a prompt of a few "
        f"tokens takes {len(fit.groups)} such blocks"
    ]


def _groups(fit: Numbers) -> list[str]:
    """The waste of short groups, and the effect of unequal pages."""
    widest = max(group.bytes for group in fit.groups)
    short = [group for group in fit.groups if group.bytes < widest]
    notes = []
    if short:
        lost = sum(widest - group.bytes for group in short) / (widest * len(fit.groups))
        notes.append(
            f"{len(short)} of {len(fit.groups)} groups have fewer layers than the widest: "
            f"{100 * lost:.1f} % of blocks handed out evenly hold nothing"
        )
    sizes = sorted({group.page.block_size for group in fit.groups if group.kind != "mamba"})
    if len(sizes) > 1:
        notes.append(
            f"blocks hold {' or '.join(map(str, sizes))} tokens by group, so that all pages have "
            f"{fit.groups[0].page.bytes:,} bytes"
        )
    return notes
