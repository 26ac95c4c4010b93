"""Eviction policies by name, built in or a user's own as `package.module:Class`, with their options.

lru      slru:segments=2      t-lru:threshold_tokens=8192:next_prompt_tokens=500      mine:Mine
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kvsim.allocators.eviction import EVICTION
from kvsim.allocators.eviction.base import Chain, Eviction
from kvsim.allocators.eviction.contract import check_eviction
from kvsim.allocators.eviction.replay import prefix_hits
from kvsim.allocators.records import InvariantError
from kvsim.sim.classes import class_named
from kvsim.sim.errors import KvsimError, check_trials
from kvsim.sim.option import checked_names, options_of, taken

__all__ = ["USUAL", "Chain", "Chosen", "check_named", "eviction_named", "evictions_named", "hits_by_size"]


USUAL = ("lru", "fifo", "sieve", "s3-fifo", "arc", "lirs", "gdsf", "w-tinylfu", "belady")
"""The default policies to replay a trace with."""


class Chosen(NamedTuple):
    """An eviction policy and its options."""

    name: str
    """as the user wrote it"""
    policy: type[Eviction]
    options: object

    def cache(self, capacity: int) -> Eviction:
        """An empty cache with room for `capacity` blocks, at least 1."""
        return self.policy(capacity, self.options)


def eviction_named(text: str) -> Chosen:
    """The policy named by a user's text.

    Raises
    ------
    KvsimError
        The name is unknown or not an `Eviction`, or the policy does not have an option.
    """
    parts = text.split(":")
    own = parts[0] not in EVICTION and len(parts) > 1
    name, given = ":".join(parts[: 1 + own]), parts[1 + own :]
    policy = class_named("eviction", name, EVICTION, Eviction)  # type: ignore[type-abstract]
    known = {each.name: each for each in options_of(policy.declares)}
    values: dict[str, object] = {}
    for each in given:
        option, _, value = each.partition("=")
        checked_names(policy.declares, [option])
        try:
            values[option] = known[option].type(value)
        except ValueError as error:
            kind = known[option].type.__name__
            raise KvsimError(f"{option} of eviction {name} must be {kind}, got {value!r}") from error
    return Chosen(text, policy, taken(policy.declares, values))


def evictions_named(texts: Iterable[str]) -> list[Chosen]:
    """Several policies, each once; `all` stands for the built-in ones."""
    names = [name for text in texts for name in (EVICTION if text == "all" else [text])]
    return [eviction_named(name) for name in dict.fromkeys(names)]


def check_named(text: str, requests: int, seed: int) -> None:
    """Test a policy against its contract (allocators/eviction/contract.py); KvsimError for a broken rule."""
    check_trials("requests", requests)
    chosen = eviction_named(text)
    try:
        check_eviction(chosen.policy, chosen.options, requests=requests, seed=seed)
    except InvariantError as error:
        raise KvsimError(f"eviction {text} breaks a rule: {error}") from error


def hits_by_size(name: str, chains: Sequence[Chain], capacities: Sequence[int]) -> list[int]:
    """Blocks that prefix caches of these sizes hit over all requests (allocators/eviction/replay.py)."""
    chosen = eviction_named(name)
    return [prefix_hits(chosen.cache(capacity), chains) if capacity else 0 for capacity in capacities]
