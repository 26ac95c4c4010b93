"""What vLLM's schedulers let a user choose: V0's own options, and V1's.

They stand apart from the schedulers, which are compiled: a compiled class keeps no `int | None` to read, and
nobody could subclass it.
"""

from dataclasses import dataclass

from kvsim.allocators.option import option
from kvsim.sim.deployment.speculation import METHODS


@dataclass(frozen=True, kw_only=True)
class VllmV0Options:
    """What of vLLM V0 no other engine has."""

    watermark: float = option(
        "Share of the memory that an admission leaves free.",
        default=0.01,
        value="X",
        least=0,
        below=1,
        doc="share of the memory that an admission leaves free",
    )
    preemption: str | None = option(
        "What becomes of preempted requests: recompute, swap.",
        default=None,
        value="NAME",
        allowed=("recompute", "swap"),
        shown="recompute; swap for several samples",
        doc="what becomes of preempted requests: `recompute`, or `swap`",
    )
    num_cpu_blocks: int | None = option(
        "Blocks of host memory for swapped requests.",
        default=None,
        value="N",
        least=0,
        shown="what fits in 4 GiB per GPU",
        doc="host memory for swapped requests, in blocks",
    )


@dataclass(frozen=True, kw_only=True)
class VllmV1Options:
    """Switches of vLLM V1; early releases lack them."""

    watermark: float = option(
        "Share of the memory that an admission leaves free.",
        default=0.0,
        value="X",
        least=0,
        below=1,
        doc="share of the memory that an admission leaves free while anything runs",
    )
    reserve_full_prompt: bool | None = option(
        "Admit a request only when its whole prompt fits.",
        default=None,
        shown="on",
        doc="whether a request enters only when all of its prompt fits",
    )
    long_prefill_token_threshold: int = option(
        "Most tokens of one prompt in a step, while there are others.",
        default=0,
        value="N",
        least=0,
        shown="0: as many as the budget has",
        doc="most tokens of one prompt that a step computes while other requests run or wait",
    )
    speculative_config: str | None = option(
        "Speculative decoding, as vLLM's JSON: method, num_speculative_tokens, ...",
        default=None,
        value="JSON",
        shown="off",
        doc="[speculative decoding](speculation.md), as vLLM's JSON: `method`, `num_speculative_tokens`, ...",
    )
    speculative_method: str | None = option(
        "Its method for short: eagle3, mtp, ngram, ...",
        default=None,
        value="NAME",
        allowed=METHODS,
        shown="that of the JSON",
        doc="for short, its `method`",
    )
    num_speculative_tokens: int | None = option(
        "Its drafts for short; 0: no speculation.",
        default=None,
        value="K",
        least=0,
        most=64,
        shown="that of the JSON",
        doc="for short, its `num_speculative_tokens`; 0: no speculation",
    )
    acceptance_length: float | None = option(
        "Tokens that a verification gives, for short.",
        default=None,
        value="X",
        least=1,
        most=65,
        shown="as the JSON says",
        doc="for short, its `synthetic_acceptance_length`",
    )
