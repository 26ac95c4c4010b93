"""User options of the policies that are compiled: a compiled class could not be subclassed.

The policies that stay Python declare theirs in their own files.
"""

from dataclasses import dataclass

from kvsim.allocators.option import option


@dataclass(frozen=True, kw_only=True)
class MlfqOptions:
    """The queues."""

    mlfq_quantum: float = option(
        "Seconds in the first queue; each further queue has twice as many.", default=0.01, value="S", above=0
    )
    mlfq_promotion: float = option(
        "Seconds of waiting after which a request returns to the first queue.",
        default=3.0,
        value="S",
        above=0,
    )
    mlfq_displaced: str = option(
        "A displaced request keeps its memory, if there is enough and it is in blocks, or is recomputed.",
        default="keep",
        allowed=("keep", "recompute"),
    )


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """What a token costs a client."""

    input_price: float = option(
        "What a prompt token counts in a client's service.",
        default=1.0,
        value="X",
        least=0,
        most=1000,
    )
    output_price: float = option(
        "What a generated token counts in a client's service.",
        default=2.0,
        value="X",
        least=0,
        most=1000,
    )
    client_weights: str = option(
        "Shares of clients, as in A=2,B=1; others have 1.", default="", value="TEXT", shown="1 each"
    )


@dataclass(frozen=True, kw_only=True)
class DeficitOptions:
    """How far ahead a client may be."""

    deficit_quantum: int = option(
        "Tokens of service that a client gets when no client has any left.", default=2048, value="N", least=1
    )
