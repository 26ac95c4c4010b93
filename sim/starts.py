"""Whether vLLM would start a run's server: its cache must hold one sequence of maximum length.

    llama-3.1-70b on a B200    131,072 tokens longest, 95,000 fit: refused, unless --max-model-len says less

The run continues anyway and rejects what does not fit.
"""

from collections.abc import Iterable

from kvsim.sim.build import Resolved
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.vllm_defaults import FAMILY
from kvsim.sim.kv.pages import Request, longest_that_fits, request_blocks

NAMED = 6
"""Most servers named in a line."""


def longest_start(found: Resolved) -> int | None:
    """The `max_model_len` with which vLLM would start; None if it starts as it is, or if unknown.

    Checks only cache sizes from the formula, not sizes given by the user.
    """
    server, capacity, hybrid = found.deployment, found.kept.capacity, found.kept.hybrid
    given = server.num_gpu_blocks is not None or server.kv_tokens is not None
    if given or not (server.scheduler_name.partition("@")[0] == FAMILY and server.allocator.has_blocks):
        return None
    longest, block = server.max_model_len, server.engine.block_size
    if hybrid is None:
        fit = capacity.tokens // server.data_parallel_size // block * block
        return None if capacity.groups or fit >= longest else fit
    if not hybrid.page_bytes:
        return None
    steps = server.pipeline_parallel_size + found.scheduler.asynchronous
    request = Request(longest, server.engine.max_num_batched_tokens * steps)
    pages = capacity.slots // hybrid.page_slots
    if request_blocks(hybrid.groups, request) <= pages:
        return None
    return longest_that_fits(hybrid.groups, pages, request)


def starts_told(servers: Iterable[Resolved]) -> list[str]:
    """A line about the servers that vLLM would not start, and a remedy; empty if it would start all."""
    refused: dict[str, None] = {}
    longest = 0
    for each in servers:
        most = longest_start(each)
        if most is not None:
            longest = max(longest, each.deployment.max_model_len)
            refused[f"--max-model-len {most} for {_called(each.deployment)}"] = None
    if not refused:
        return []
    named = "; ".join([*refused][:NAMED])
    more = f"; and {len(refused) - NAMED} more" if len(refused) > NAMED else ""
    return [
        f"vLLM would not start: one sequence of {longest:,} tokens does not fit the cache. "
        f"It would with {named}{more}."
    ]


def _called(server: Deployment) -> str:
    gpus = server.tensor_parallel_size * server.pipeline_parallel_size * server.data_parallel_size
    return f"{server.model.name} on {f'{gpus} x ' if gpus > 1 else ''}{server.gpu.name}"
