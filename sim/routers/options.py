"""Options of compiled routers: a compiled class would lose the types of its options."""

from dataclasses import dataclass

from kvsim.allocators.option import option


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Options of least-requests."""

    router_choices: int = option("Replicas drawn for each request; 0: all.", default=0, value="N", least=0)


@dataclass(frozen=True, kw_only=True)
class Balanced:
    """Options of prefix, named and set as SGLang's router did."""

    cache_threshold: float = option(
        "Share of a prompt that a replica must have cached to get it.",
        default=0.5,
        value="X",
        least=0,
        most=1,
    )
    balance_abs_threshold: int = option(
        "Most requests that the most loaded replica may have more than the least loaded one.",
        default=32,
        value="N",
        least=0,
    )
    balance_rel_threshold: float = option(
        "Least ratio of the two loads before prefixes no longer matter.",
        default=1.1,
        value="X",
        least=1,
    )
