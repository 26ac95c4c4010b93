"""What a scheduler must do: `schedule` the step that starts now, and say what happens at a finish."""

from abc import ABC, abstractmethod
from typing import ClassVar

from sim.config import EngineConfig
from sim.errors import KvsimError, unknown
from sim.request import Request
from sim.server import Server


class Scheduler(ABC):
    """Decides each step; all state is in the server.

    While nothing was admitted, evicted or prefilled, the engine repeats the step (a span) without
    asking again, until a sequence finishes, memory is short or somebody arrives at an empty queue.
    So a decision may depend on the server's state only, never on how often it was asked.
    """

    VERSIONS: ClassVar[tuple[str, ...]] = ()
    """Releases whose behaviour it knows, the default last."""
    freed_first: bool = True
    """Whether the engine lends the blocks freed last before all others."""

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        self.config = config
        self.max_model_len = max_model_len
        _, _, version = (config.scheduler or "").partition("@")
        if version and version not in self.VERSIONS:
            raise unknown("scheduler version", version, list(self.VERSIONS))
        self.version = version or (self.VERSIONS[-1] if self.VERSIONS else "")

    def refuse(self, *settings: str) -> None:
        """Raise KvsimError if any of these settings, which it has no use for, is not at its default."""
        for name in settings:
            value, default = getattr(self.config, name), getattr(EngineConfig, name)
            if value != default:
                raise KvsimError(f"{name} must be left out for this scheduler, got {value!r}")

    @abstractmethod
    def schedule(self, server: Server) -> None:
        """Evict, grow and admit for the step that starts now."""

    def finish(self, server: Server, request: Request) -> None:
        """A request has its last token: its memory is free for the next step."""
        server.release(request)
