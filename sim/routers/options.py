"""Options of routers that are compiled, which lose the types of what they declare themselves."""

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
        "Share of a prompt that must be cached for it to be sent there.",
        default=0.5,
        value="X",
        least=0,
        most=1,
    )
    balance_abs_threshold: int = option(
        "How many requests more than the least loaded replica the most loaded one may have.",
        default=32,
        value="N",
        least=0,
    )
    balance_rel_threshold: float = option(
        "How many times as many, at least, before prefixes no longer matter.",
        default=1.1,
        value="X",
        least=1,
    )
