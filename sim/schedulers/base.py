"""The interface of schedulers: decide the step that starts now, and handle finished requests.

A scheduler decides by calling the server's operations: `admit_head`, `continue_prefill`, `grow_due`, `pause`,
`preempt`, `release`. Each takes effect immediately or reports that there is no room, and is recorded in what
`decide` returns (sim/serving/decision.py). Everything else, including the cost of copies and swaps, follows
from this record. A scheduler of your own is a class of 40 lines: docs/own-scheduler.md; `sim check-scheduler`
tests it.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import Allocator
from kvsim.allocators.option import NoOptions
from kvsim.allocators.options import CacheRules, Order, said_by
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.option import taken
from kvsim.sim.policies.named import policy_of
from kvsim.sim.serving.batch import Batch
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Rules, Server
from kvsim.sim.workload import Beam, Workload

if TYPE_CHECKING:
    from kvsim.sim.deployment.deployment import Deployment
    from kvsim.sim.deployment.sharing import SharedTiers

T = TypeVar("T")


@mypyc_attr(allow_interpreted_subclasses=True)
class Scheduler:
    """Decides each step; all state is in the server.

    If no request entered, left or prefilled, the step is repeated (a span) without another call, until a
    sequence finishes, memory is short or a request arrives at an empty queue. So a decision may depend only
    on the server's state, never on the number of calls.
    """

    family: ClassVar[str] = "yours"
    """What one of its steps computes: one of `FAMILIES` (sim/schedulers/__init__.py)."""
    idea: ClassVar[str] = ""
    VERSIONS: ClassVar[tuple[str, ...]] = ()
    """Releases whose behaviour it implements; the last one is the default."""
    declares: ClassVar[type] = NoOptions
    """Its own options: a frozen dataclass of `option` fields (allocators/option.py)."""
    caches: ClassVar[bool] = False
    """Whether it can use a prefix cache (`enable_prefix_caching`)."""
    overlaps: ClassVar[bool] = False
    """Whether it can decide a step before the previous one has ended (`async_scheduling`)."""
    reserves: ClassVar[bool] = False
    """Whether it relies on a request's reservation, whatever the allocator does."""
    policies: ClassVar[tuple[str, ...]] = ("fcfs", "priority", "sjf")
    """Policies that it supports as the order of its queue."""
    keyed: ClassVar[bool] = False
    """Whether it also supports policies with keys (sim/policies)."""
    serves_in_turn: ClassVar[tuple[str, ...]] = ()
    """Policies under which only the head of the queue is considered and arrivals go to the end. An arrival
    then changes nothing while any request waits, so spans continue across it. A subclass, which may consider
    other requests, must declare this again."""
    forks: ClassVar[bool] = False
    """Whether the samples of a request share its memory as one group, or wait separately."""
    publishes_late: ClassVar[bool] = False
    """Whether a prefix can be hit only after the step that computes it."""
    limits_length: ClassVar[bool] = True
    """Whether an answer ends at the maximum length."""
    asynchronous: bool
    """Whether a step is decided before the previous one has ended; off unless a class says so."""
    hides_host: bool
    """Whether its host prepares a step while the GPU computes the previous one, which affects durations, not
    decisions. On, unless a class says otherwise or the user sets `async_scheduling` to False."""
    order: Order
    """The free block that the engine allocates first: by default the one freed last."""
    keeps_groups: bool
    """Whether the engine keeps unlike layers in groups over one pool, with their prefixes."""
    cache: CacheRules | None
    """How the engine keeps prefixes; None: not at all."""
    max_chunk: int | None
    """Most tokens of one prompt that a step computes; None: all of them."""
    watermark: float
    """Share of the memory that an admission must leave free while anything runs."""
    ends_steps: bool
    """Whether `end_step` is called after each step."""
    host_blocks: int | None
    """Blocks of host memory for swapped sequences; None: as many as fit in vLLM's default swap space."""

    @classmethod
    def defaults(cls, version: str, max_model_len: int) -> Mapping[str, object]:
        """A release's own defaults of settings that the user does not choose."""
        return {}

    @classmethod
    def recorded(cls, release: str) -> str:
        """The one of `VERSIONS` whose rules a release follows; KvsimError if it is unknown."""
        if release not in cls.VERSIONS:
            raise unknown("scheduler version", release, list(cls.VERSIONS))
        return release

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        self.config = config
        self.max_model_len = max_model_len
        self.asynchronous = said_by(type(self), "asynchronous", False)
        self.hides_host = said_by(type(self), "hides_host", True) and config.async_scheduling is not False
        self.order = said_by(type(self), "order", Order.STACK)
        self.keeps_groups = said_by(type(self), "keeps_groups", False)
        self.cache = said_by(type(self), "cache", None)
        self.max_chunk = said_by(type(self), "max_chunk", None)
        self.watermark, self.host_blocks = 0.0, None
        self.ends_steps = False
        name, _, version = (config.scheduler or "").partition("@")
        if version and not self.VERSIONS:
            raise KvsimError(f"scheduler {name} has no releases, got {version!r}")
        self.version = self.recorded(version) if version else self.VERSIONS[-1] if self.VERSIONS else ""
        if config.enable_prefix_caching and not self.caches:
            self._refuse("enable_prefix_caching", True)
        if config.async_scheduling and not self.overlaps:
            self._refuse("async_scheduling", True)
        self.policy = policy_of(config, max_model_len) if self.keyed else None
        if self.policy is None and config.policy not in self.policies:
            known = ", ".join(self.policies)
            raise KvsimError(f"policy must be one of {known} for scheduler {name}, got {config.policy!r}")

    @property
    def in_turn(self) -> bool:
        """Whether it serves in turn under the chosen policy."""
        return self.config.policy in type(self).__dict__.get("serves_in_turn", ())

    @property
    def reads_facts(self) -> bool:
        """Whether it needs the client and the due time of requests (sim/serving/facts.py)."""
        return self.policy is not None

    def own(self, kind: type[T]) -> T:
        """Its own options, of the class that it `declares`, with the user's values."""
        return taken(kind, self.config.options)

    def _refuse(self, setting: str, value: object) -> None:
        raise KvsimError(f"{setting} must be left out for scheduler {self.config.scheduler}, got {value!r}")

    def new_server(self, allocator: Allocator, bound: Callable[[Request], int]) -> Server:
        """The server that it schedules."""
        return Server(Batch(KvMemory(allocator)), Rules(bound, self.config.policy, self.publishes_late))

    def put_below(self, server: Server, deployment: "Deployment", shared: "SharedTiers") -> None:
        """Give its server the tier below the memory that its options request; most have no such options.

        `shared` are the tiers that the servers of its fleet share.
        """

    def decide(self, server: Server) -> Decision:
        """Decide the step that starts now; returns the record of all that `schedule` did to the server."""
        allocator = server.allocator
        copied, cow_copies = allocator.copied_slots, allocator.cow_copies
        server.step = step = Decision()
        step.changed = step.paused = False  # read in most steps: this is faster
        step.prompts = step.valid = None
        self.schedule(server)
        if not step.paused:
            step.decodes = server.progress.size
        if copied != allocator.copied_slots:
            moved = step.of_moves()
            moved.copied_slots = allocator.copied_slots - copied
            moved.cow_copies = allocator.cow_copies - cow_copies
        return step

    @abstractmethod
    def schedule(self, server: Server) -> None:
        """Preempt, grow and admit for the step that starts now."""

    def refusal(self, server: Server, request: Request, sequences: int) -> str:
        """Why a request with so many sequences (samples or candidates) can never be served, or ""."""
        allocator = server.allocator
        if allocator.fits(request.final_tokens, server.most_reserved(request)):
            return ""
        return f"does not fit an empty arena of {allocator.capacity_slots:,} slots"

    def longest_answer(self, server: Server, prompt: int, longest: int) -> int:
        """Tokens after which an answer is truncated, if a sequence may have `longest`."""
        return max(longest - prompt, 1)

    def head(self, server: Server) -> Request | None:
        """The request that is first in the queue, or None."""
        return server.waiting[0] if server.waiting else None

    def held_back(self, server: Server) -> str:
        """Why the head of the queue was not admitted in this step, if memory was not the reason."""
        step = server.step
        if step.preemptions > step.displaced:
            return "eviction"
        departed = step.departed if step.departures else 0
        if len(server.running) + departed >= self.config.max_num_seqs:
            return "seats"
        spent = server.step.budget_spent + server.decoding
        if self.watermark and spent < self.config.max_num_batched_tokens:
            return "watermark"
        return "token budget"

    def counted_as_waiting(self, server: Server) -> int:
        """Running sequences that the engine logs as waiting."""
        return 0

    def start_decode(self, server: Server, request: Request) -> Sequence[Request]:
        """The prompt is computed and produced a token: continue decoding. Returns requests finished by it."""
        if request.generated < request.output_tokens:
            server.start_decode(request)
            return ()
        server.end_prefill(request)
        return (request,)

    def follow(self, workload: Workload) -> None:
        """Called with the workload before it arrives, for recorded facts beyond its requests."""

    def search(self, beam: Beam) -> None:
        """Prepare for beam search."""
        name = self.config.scheduler
        raise KvsimError(
            f"beam_width must be 1 for scheduler {name}, which cannot search by beams, got {beam.width}"
        )

    def choose_beams(self, server: Server) -> None:
        """After a step: choose the surviving candidates of each beam search."""

    def end_step(self, server: Server) -> None:
        """After a step: its tokens exist, and finished requests were reported."""

    def rest(self, server: Server) -> None:
        """Nothing runs or waits; no decision is due until a request arrives."""

    def finish(self, server: Server, request: Request) -> None:
        """A request has its last token: free its memory for the next step."""
        server.release(request)
