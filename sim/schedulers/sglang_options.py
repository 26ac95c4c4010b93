"""User options of SGLang's scheduler."""

from dataclasses import dataclass
from typing import Final

from kvsim.allocators.option import option
from kvsim.allocators.sglang.host_tree import HITS
from kvsim.sim.schedulers.transfer_link import transfer_link

OF_HICACHE: Final = (
    "hicache_ratio",
    "hicache_size",
    "hicache_write_policy",
    "hicache_link",
    "hicache_storage_backend",
)
"""Options that need HiCache."""
OF_STORAGE: Final = (
    "hicache_storage_prefetch_policy",
    "hicache_prefetch_threshold",
    "hicache_storage_prefetch_retry_poll_interval",
    "hicache_storage_prefetch_retry_max_attempts",
)
"""Options that need storage below HiCache."""


@dataclass(frozen=True, kw_only=True)
class SglangOptions:
    """Options of SGLang's scheduler only."""

    schedule_conservativeness: float = option(
        "Factor on what is set aside for running answers.", default=1.0, value="X", above=0
    )
    enable_mixed_chunk: bool = option(
        "Decode in steps that compute prompts, too.",
        default=False,
    )
    max_tokens: int | None = option(
        "Longest answer that clients ask for.",
        default=None,
        value="N",
        least=1,
        shown="as long as each will be",
        doc="the `max_tokens` of every request; a share of it is set aside",
    )
    ignore_eos: bool = option("Answers end only at their length, so all of it is set aside.", default=False)
    preemption_threshold: int | None = option(
        "Preempt requests that are less urgent by more than this.",
        default=None,
        value="N",
        least=0,
        shown="never",
    )
    random_seed: int = option(
        "Seed of the order that the policy random draws.",
        default=0,
        value="N",
        least=0,
        doc="seed of the order in which `--policy random` shuffles the queue",
    )

    kv_transfer_link: str = transfer_link()
    num_reserved_decode_tokens: int = option(
        "Tokens that a decode pool keeps free for each request that it has.",
        default=512,
        value="N",
        least=0,
        doc="the tokens that a server of a [decode pool](fleet.md#pushed-as-in-sglang) keeps free for each "
        "request that it has, when it reserves room for another",
    )
    disaggregation_decode_enable_radix_cache: bool = option(
        "Keep prefixes in a decode pool, too.",
        default=False,
        doc="whether servers of a [decode pool](fleet.md#pushed-as-in-sglang) keep prefixes, so that only "
        "what they lack is sent",
    )

    enable_hierarchical_cache: bool = option(
        "HiCache: a tier in host memory.",
        default=False,
        doc="[HiCache](tiers.md#hicache): what the GPU evicts stays in host memory",
    )
    hicache_ratio: float = option(
        "Its size, as a multiple of the GPU's KV memory.", default=2.0, value="X", above=0
    )
    hicache_size: int = option("Its size in GB per GPU; 0: by the ratio.", default=0, value="GB", least=0)
    hicache_write_policy: str = option(
        "When it is written: at the first hit, at the second, or at eviction.",
        default="write_through",
        allowed=tuple(HITS),
        value="NAME",
        doc="when it is written: `write_through` when a text is first computed, `write_through_selective` "
        "when it is hit again, `write_back` when the GPU evicts it",
    )
    hicache_link: str = option(
        "Its link, as for --kv-offloading-link.",
        default="pcie",
        value="NAME|GB/S",
        doc="the [link](tiers.md#links) of each GPU to it, as for `--kv-offloading-link`",
    )

    hicache_storage_backend: str | None = option(
        "A storage below it: file:2TiB:nvme, with a policy.",
        default=None,
        value="TIER",
        shown="none",
        doc="a [storage](tiers.md#hicache) below it: name, size, link and policy, as in `file:2TiB:nvme:lru`",
    )
    hicache_storage_prefetch_policy: str = option(
        "When a request stops waiting for it: best_effort, wait_complete, timeout.",
        default="timeout",
        value="NAME",
        allowed=("best_effort", "wait_complete", "timeout"),
        doc="when a request that could be admitted stops waiting for what is being fetched: immediately "
        "(`best_effort`), never (`wait_complete`), or after 1 s and 0.25 s per 1,024 tokens (`timeout`)",
    )
    hicache_prefetch_threshold: int = option(
        "Fewest tokens that are fetched from it.",
        default=256,
        value="N",
        least=1,
        doc="the fewest tokens that are fetched from it: SGLang's `prefetch_threshold`",
    )
    hicache_storage_prefetch_retry_poll_interval: int = option(
        "Scheduling passes after which a request that got nothing asks it again; 0: never.",
        default=8,
        value="N",
        least=0,
        doc="a waiting request that got nothing asks it again after this many of the scheduler's passes; "
        "0: never",
    )
    hicache_storage_prefetch_retry_max_attempts: int = option(
        "Times that a request asks again at most.",
        default=8,
        value="N",
        least=0,
        doc="how often each request asks again at most, also for what was evicted since it asked",
    )

    def __post_init__(self) -> None:
        if self.ignore_eos and self.max_tokens is not None:
            raise ValueError(
                "max_tokens must be left out with ignore_eos, which makes each answer as long as asked, "
                f"got {self.max_tokens}"
            )
        if not self.enable_hierarchical_cache:
            self._check_unset("enable_hierarchical_cache", *OF_HICACHE, *OF_STORAGE)
        elif self.hicache_storage_backend is None:
            self._check_unset("hicache_storage_backend", *OF_STORAGE)

    def _check_unset(self, partner: str, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value != getattr(type(self), name):
                raise ValueError(f"{name} must be left out without {partner}, got {value!r}")
