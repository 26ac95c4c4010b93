"""The number of blocks in a memory, and the numbers that vLLM reports at startup.

    blocks       = memory // bytes per block                                one of them is the null block
    a request    = sum over groups of the blocks that it takes at its longest
    concurrency  = blocks / blocks of a request
    "KV cache size" = int(concurrency * max_model_len)      tokens, and not blocks * block size

The printed size is derived from a request of the longest length, so it depends on the tokens in flight (which
windows also keep) and on the number of groups. vLLM refuses to start if such a request does not fit beside
the null block (vllm/v1/core/kv_cache_utils.py, kv_cache_planning.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from kvsim.sim.kv.pages import Group, Request, bytes_per_block, longest_that_fits, request_blocks

GIB = 2**30


@dataclass(frozen=True)
class Capacity:
    """The KV cache of a GPU.

    Attributes
    ----------
    num_blocks : int
        Block ids, including the null block.
    bytes_per_block : int
    blocks_per_request : int
        For the longest request, over all groups.
    kv_tokens, max_concurrency : int, float
        As vLLM's log prints them.
    longest : int
        The longest request that would fit (--max-model-len -1); 0 if none.
    refusal : str or None
        Why vLLM would not start; the other numbers then describe the pool that it would have had.
    """

    num_blocks: int
    bytes_per_block: int
    blocks_per_request: int
    kv_tokens: int
    max_concurrency: float
    longest: int
    refusal: str | None = None


def capacity_of(
    groups: Sequence[Group],
    memory_bytes: int,
    request: Request,
    blocks_outermost: bool = False,
    block_bytes: int | None = None,
) -> Capacity:
    """Blocks, tokens and concurrency of a pool of `memory_bytes`; `block_bytes`: of a part of the layers."""
    block = bytes_per_block(groups, blocks_outermost) if block_bytes is None else block_bytes
    needed = request_blocks(groups, request)
    usable = memory_bytes - block  # without the null block
    longest = longest_that_fits(groups, usable // block, request)
    blocks = max(0, memory_bytes // block)
    concurrency = blocks / needed
    return Capacity(
        num_blocks=blocks,
        bytes_per_block=block,
        blocks_per_request=needed,
        kv_tokens=int(concurrency * request.max_model_len),
        max_concurrency=concurrency,
        longest=longest,
        refusal=_refusal(block * needed, usable, block, request.max_model_len, longest),
    )


def pipeline_capacity(
    groups: Sequence[Group], stages: Sequence[Sequence[Group]], memory_bytes: Sequence[int], request: Request
) -> Capacity:
    """The pool of a pipeline: a block id covers the stage's layers of a group on each of its GPUs.

    The stage with the fewest blocks decides. `stages` are the groups with each stage's layers.
    """
    each = [
        capacity_of(
            groups, memory, request, block_bytes=bytes_per_block([group for group in stage if group.pages])
        )
        for stage, memory in zip(stages, memory_bytes, strict=True)
    ]
    fewest = min(each, key=lambda capacity: capacity.num_blocks)
    refusals = [capacity.refusal for capacity in each if capacity.refusal]
    return replace(
        fewest,
        longest=min(capacity.longest for capacity in each),
        refusal=fewest.refusal or (refusals[0] if refusals else None),
    )


def stages_of(groups: Sequence[Group], layers: int, count: int) -> list[list[Group]]:
    """The groups with the layers of each of `count` stages, which share the layers evenly."""
    ends = [layers * stage // count for stage in range(count + 1)]
    return [
        [
            Group(
                tuple(number for number in group.layers if first <= number < last),
                tuple(
                    page
                    for number, page in zip(group.layers, group.pages, strict=True)
                    if first <= number < last
                ),
            )
            for group in groups
        ]
        for first, last in pairwise(ends)
    ]


def blocks_printed(groups: Sequence[Group], kv_tokens: int, request: Request) -> int:
    """The number of blocks, with the null block, for which an engine prints `kv_tokens`."""
    return -(-kv_tokens * request_blocks(groups, request) // request.max_model_len)


def _refusal(needed: int, usable: int, block: int, length: int, longest: int) -> str | None:
    if usable <= 0:
        return f"no memory is left for the cache: {in_words(block - usable)} more would make one usable block"
    if needed <= usable:
        return None
    advice = f"; or --max-model-len {longest}" if longest else ", for even one token does not fit"
    return (
        f"one request of {length:,} tokens needs {in_words(needed)} of cache, and {in_words(usable)} are "
        f"available besides the null block: {in_words(needed - usable)} more{advice}"
    )


def in_words(count: int) -> str:
    """Bytes in words: GiB, or MiB below a tenth of a GiB."""
    return f"{count / GIB:.2f} GiB" if abs(count) >= GIB // 10 else f"{count / 2**20:.2f} MiB"
