"""What a scheduler must do: `schedule` the step that starts now, and say what happens at a finish."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from kvsim.allocators.base import Allocator
from kvsim.allocators.options import CacheRules, Order
from kvsim.sim.config import EngineConfig
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.request import Request
from kvsim.sim.server import Server
from kvsim.sim.workload import Beam


class Scheduler(ABC):
    """Decides each step; all state is in the server.

    While nothing was admitted, evicted or prefilled, the engine repeats the step (a span) without
    asking again, until a sequence finishes, memory is short or somebody arrives at an empty queue.
    So a decision may depend on the server's state only, never on how often it was asked.
    """

    VERSIONS: ClassVar[tuple[str, ...]] = ()
    """Releases whose behaviour it knows, the default last."""
    forks: ClassVar[bool] = False
    """Whether the samples of a request share its memory as one group, or wait one by one."""
    pauses: ClassVar[bool] = False
    """Whether there are steps in which the decoding sequences stand still."""
    fills_late: ClassVar[bool] = False
    """Whether a prefix can be found only after the step that computes it."""
    limits_length: ClassVar[bool] = True
    """Whether an answer ends at the maximum length."""
    order: Order = Order.STACK
    """The free block that the engine lends first."""
    cache: CacheRules | None = None
    """How the engine keeps prefixes; None: it does not."""
    max_chunk: int | None = None
    """Most tokens of one prompt that a step computes; None: all of it."""

    @classmethod
    def defaults(cls, version: str, max_model_len: int) -> Mapping[str, object]:
        """Settings that a release has of its own, where the user chooses none."""
        return {}

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        self.config = config
        self.max_model_len = max_model_len
        name, _, version = (config.scheduler or "").partition("@")
        if version and not self.VERSIONS:
            raise KvsimError(f"scheduler {name} has no releases, got {version!r}")
        if version and version not in self.VERSIONS:
            raise unknown("scheduler version", version, list(self.VERSIONS))
        self.version = version or (self.VERSIONS[-1] if self.VERSIONS else "")

    def refuse(self, *settings: str) -> None:
        """Raise KvsimError if any of these settings, which it has no use for, is not at its default."""
        for name in settings:
            value, default = getattr(self.config, name), getattr(EngineConfig, name)
            if value != default:
                raise KvsimError(
                    f"{name} must be left out for scheduler {self.config.scheduler}, got {value!r}"
                )

    def only_recomputes(self) -> None:
        """Raise KvsimError if evicted sequences are to be swapped, as this engine cannot."""
        if self.config.preemption == "swap":
            raise KvsimError(
                f"preemption must be recompute for scheduler {self.config.scheduler}, got 'swap'"
            )

    def new_server(self, allocator: Allocator, bound: Callable[[Request], int]) -> Server:
        """The server that it schedules."""
        return Server(allocator, bound, self.config.policy, self.fills_late, self.pauses)

    @abstractmethod
    def schedule(self, server: Server) -> None:
        """Evict, grow and admit for the step that starts now."""

    def refusal(self, server: Server, request: Request, sequences: int) -> str:
        """Why a request with so many samples, or candidates, can never be served, or ""."""
        allocator = server.allocator
        if allocator.fits(request.final_tokens, server.bound(request)):
            return ""
        return f"does not fit an empty arena of {allocator.capacity_slots:,} slots"

    def held_back(self, server: Server) -> str:
        """Why the head of the queue was not admitted in this step, although it was not refused room."""
        if server.evicted:
            return "eviction"
        if len(server.running) >= self.config.max_num_seqs:
            return "seats"
        spent = server.chunk_tokens + server.skipped_tokens + server.decoding
        if self.config.watermark and spent < self.config.max_num_batched_tokens:
            return "watermark"
        return "token budget"

    def start_decode(self, server: Server, request: Request) -> Sequence[Request]:
        """The prompt is computed and gave a token: decode on. Returns who is finished with it."""
        if request.generated < request.output_tokens:
            server.start_decode(request)
            return ()
        server.prefill_held -= request.computed
        return (request,)

    def search(self, beam: Beam) -> None:
        """Prepare for beam search."""
        name = self.config.scheduler
        raise KvsimError(
            f"beam_width must be 1 for scheduler {name}, which cannot search by beams, got {beam.width}"
        )

    def choose_beams(self, server: Server) -> None:  # noqa: B027 - most have none
        """A step is over: say which candidates of each beam search live on."""

    def finish(self, server: Server, request: Request) -> None:
        """A request has its last token: its memory is free for the next step."""
        server.release(request)
