"""The numbers of a run, with names and types: a lossless view of `summary.json`.

    summary.latency.ttft_s.p99              by attribute, as an editor completes it
    summary["latency"]["ttft_s"]["p99"]     as in the file
    summary.flat()["latency.ttft_s.p99"]    as one row of a table

docs/output.md explains each number. None: the run does not have this number.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args, get_type_hints

from kvsim.sim.cost.trust import Errors


class Part(Mapping[str, Any]):
    """A JSON object whose names are declared as annotations of a subclass."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the annotations of the subclass say
        hints = _hints(type(self))
        if name.startswith("_") or (name not in hints and name not in self._values):
            from difflib import get_close_matches

            near = get_close_matches(name, {*hints, *self._values}, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"{type(self).__name__} has no {name!r}{hint}")
        value = self._values.get(name)
        part = hints.get(name, Part)
        return part(value) if isinstance(value, Mapping) else value

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - any value of JSON
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_hints(type(self)), *self._values})

    def __repr__(self) -> str:
        """One line per group of numbers, for a shell; `flat` has them with all digits."""
        groups: dict[str, list[str]] = {}
        for name, value in self.flat().items():
            group, _, last = name.rpartition(".")
            said = f"{value:.4g}" if isinstance(value, float) else repr(value)
            groups.setdefault(group, []).append(f"{last}={said}")
        lines = [
            f"{group}: {', '.join(said)}" if group else ", ".join(said) for group, said in groups.items()
        ]
        return "\n  ".join([f"<{type(self).__name__}", *lines]) + ">"

    def as_json(self) -> dict[str, Any]:
        """The JSON object."""
        return dict(self._values)

    def flat(self) -> dict[str, Any]:
        """Every number by its full name, parts joined by dots."""
        found: dict[str, Any] = {}
        for name, value in self._values.items():
            if isinstance(value, Mapping):
                found |= {f"{name}.{inner}": number for inner, number in Part(value).flat().items()}
            else:
                found[name] = value
        return found

    def __reduce__(self) -> tuple[type, tuple[Mapping[str, Any]]]:
        return type(self), (self._values,)


@cache
def _hints(part: type) -> dict[str, type]:
    """Declared name -> the class of that part, or Part."""
    found = {}
    for name, hint in get_type_hints(part).items():
        kinds = [
            kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and issubclass(kind, Part)
        ]
        found[name] = kinds[0] if kinds else Part
    return found


class Spread(Part):
    """The distribution of a number over requests or tokens, in the unit given by its name."""

    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


class Requests(Part):
    """How many requests there were, and how they ended."""

    submitted: int
    finished: int
    rejected: int
    rejected_reasons: Part
    truncated: int


class Throughput(Part):
    """Requests and tokens per second of simulated time."""

    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None


class Latency(Part):
    """Latencies in seconds, over finished requests; ITL over the gaps between their tokens."""

    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    normalized_s_per_token: Spread
    queueing_s: Spread
    itl_s: Spread


class HeldBack(Part):
    """Share of the run's time, 0 to 1, in which each limit kept the head of the queue from being admitted."""

    kv_memory: float | None
    max_num_seqs: float | None
    max_num_batched_tokens: float | None
    batch: float | None


class Load(Part):
    """The load on the server, whether it kept up, and what held requests back (record/load.py)."""

    arrivals: str
    overloaded: bool
    arriving_requests_per_s: float | None
    leaving_requests_per_s: float | None
    waiting_at_last_arrival: int | None
    held_back_share: HeldBack


class Shares(Part):
    """The waste ledger in percent of the capacity; the kinds sum to 100. Few allocators have `idle` slots."""

    token: float
    reserved: float
    internal: float
    cached: float
    external: float
    idle: float | None
    free: float


class KindOfLayers(Part):
    """What one kind of layer holds, in percent of the whole memory; `free` if the kind has its own pool."""

    in_words: str
    average: Shares | None
    saturated: Shares | None


class Memory(Part):
    """KV memory, time-weighted: over the whole run, and while requests waited (`saturated`).

    `groups` has a `KindOfLayers` per kind, if unlike layers are kept in groups.
    """

    capacity_tokens: int
    average: Shares | None
    saturated: Shares | None
    saturated_share: float | None
    saved_by_sharing: float | None
    peak_used_tokens: int
    external_fragmentation_refusals: int
    groups: Part | None


class Engine(Part):
    """What the engine did."""

    allocator: str
    scheduler: str
    reserve: str | None
    steps: int
    mean_running: float | None
    mean_running_saturated: float | None
    max_running: int
    preemptions_recompute: int
    preemptions_swap: int
    swapped_in_blocks: int
    swapped_out_blocks: int
    cow_copies: int
    copied_tokens: int
    prefix_hit_tokens: int


class Speculation(Part):
    """The fate of drafts; the rate is that of verified drafts, the length is in tokens per verification."""

    verifications: int
    draft_tokens: int
    accepted_tokens: int
    wasted_tokens: int
    acceptance_rate: float | None
    acceptance_length: float | None


class Upkeep(Part):
    """Other work of an allocator, and its time: while steps waited for it, or beside them."""

    maps: int
    unmaps: int
    steps_waited_s: float
    beside_steps_s: float
    beyond_steps_s: float


class Tier(Part):
    """The tier below the GPU's memory: what it held, found and moved, and the requests that waited for it."""

    capacity_bytes: int
    average_used_share: float | None
    peak_used_bytes: int
    hit_tokens: int
    hit_share: float | None
    saved_prefill_s: float
    loaded_bytes: int
    stored_bytes: int
    load_busy_share: float | None
    store_busy_share: float | None
    requests_waited: int
    mean_wait_s: float | None
    steps_waited_s: float
    refused_stores: int
    evicted_bytes: int
    promoted_tokens: int
    promoted_bytes: int
    cascaded_bytes: int
    links: Part


class MemoryStats(Part):
    """What `torch.cuda.memory_stats()` reports for an allocator of tensors: peaks and counts."""

    allocated_peak_bytes: int
    requested_peak_bytes: int
    reserved_peak_bytes: int
    inactive_split_peak_bytes: int
    segments_peak: int
    alloc_retries: int
    ooms: int
    device_allocs: int
    device_frees: int


class Validated(Part, Errors):
    """Errors of a clock against real servers, as shares; a positive bias is too long, or too much."""


class Cost(Part):
    """The clock of step times, the share of time outside what was measured, and its errors."""

    source: str
    extrapolated_share: float | None
    clock: str
    profile: str | None
    device: str | None
    date: str | None
    trust: str
    validated: Validated | None


class Fleet(Part):
    """Number of servers, and how requests were spread over them."""

    replicas: int
    router: str
    sticky: bool
    seed: int


class Pool(Part):
    """The numbers of a pool's servers together; `cost` is in the currency of `gpu_price`, None without it."""

    name: str
    role: str
    gpu: str
    gpus: int
    replicas: int
    first_replica: int
    requests: int
    finished: int
    output_tokens: int
    latency: Latency
    gpu_hours: float
    cost: float | None


class Faults(Part):
    """The cost of deaths of replicas; `down_s` is the sum of all their times, `times` has each."""

    deaths: int
    resent_requests: int
    wasted_output_tokens: int
    lost_kv_tokens: int
    down_s: float
    times: list[dict[str, Any]]


class Scaling(Part):
    """Number and cost of replicas; `gpu_hours_of_all`: if all had been there all the time.

    With unlike servers, `pools` has the same for each pool.
    """

    policy: str
    gpu_hours: float
    gpu_hours_of_all: float
    cost: float | None
    mean_replicas: float | None
    starts: int
    drains: int
    pools: list[dict[str, Any]] | None
    over_time: list[dict[str, Any]]
    changes: list[dict[str, Any]]


class HandOver(Part):
    """Prompts moved from prefill to decode servers; bytes on all GPUs, share of one server's KV memory."""

    requests: int
    read_bytes: int
    mean_transfer_s: float | None
    mean_held_s: float | None
    peak_held_share: float


class Migration(Part):
    """Migrations of running requests; `given_up`: number given up, by reason; bytes on all GPUs."""

    migrations: int
    requests: int
    given_up: dict[str, int]
    copied_bytes: int
    mean_stages: float | None
    mean_copy_s: float | None
    mean_downtime_s: float | None


class LimitMet(Part):
    """One limit of the SLO: the measured value, and the share of all requests within the limit, 0 to 1."""

    limit_s: float
    measured_s: float | None
    within_share: float | None
    met: bool


class Slo(Part):
    """Whether the latency limits of `slo` were met (attainment.py); `by_limit`: a LimitMet per limit."""

    limits: str
    met: bool
    attained_share: float | None
    goodput_requests_per_s: float | None
    goodput_requests_per_s_per_gpu: float | None
    by_limit: Part


class PerGpu(Part):
    """Throughput divided by the GPUs of all replicas; with scaling by the mean number billed."""

    gpus: float
    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None


class Price(Part):
    """The cost of GPUs and tokens, in the currency of `gpu_price`."""

    per_gpu_hour: float
    per_hour: float
    per_million_output_tokens: float | None
    per_million_tokens: float | None


class SimulationTime(Part):
    """How long the simulation took on this machine: the only part that differs between equal runs."""

    cpu_s: float
    wall_s: float
    requests_per_cpu_s: float | None


class Service(Part):
    """Service to requests that have a client or a due time (sim/record/service.py)."""

    longest_wait_s: float | None
    attained_share: float | None
    wasted_tokens: int
    jain_index: float | None
    largest_difference: float | None
    clients: Part


class Summary(Part):
    """The numbers of a run.

    A fleet also has `fleet`, and the numbers of each replica under `replicas`; unlike servers also have
    `pools`, with a Pool each. There is `faults` if replicas die, `scaling` if they come and go, and `slo`,
    `per_gpu` and `price` if goals were set.
    """

    label: str
    duration_s: float
    requests: Requests
    throughput: Throughput
    latency: Latency
    load: Load
    memory: Memory
    engine: Engine
    cost: Cost
    notes: list[str]
    simulation: SimulationTime
    slo: Slo | None
    per_gpu: PerGpu | None
    price: Price | None
    speculation: Speculation | None
    upkeep: Upkeep | None
    tier: Tier | None
    memory_stats: MemoryStats | None
    service: Service | None
    fleet: Fleet | None
    pools: list[dict[str, Any]] | None
    faults: Faults | None
    scaling: Scaling | None
    hand_over: HandOver | None
    migration: Migration | None
    replicas: list[dict[str, Any]] | None
