"""What a scheduler must do: `schedule` the step that starts now, and say what happens at a finish."""

from abc import ABC, abstractmethod

from sim.config import EngineConfig
from sim.request import Request
from sim.server import Server


class Scheduler(ABC):
    """Decides each step; all state is in the server.

    While nothing was admitted, evicted or prefilled, the engine repeats the step (a span) without
    asking again, until a sequence finishes, memory is short or somebody arrives at an empty queue.
    So a decision may depend on the server's state only, never on how often it was asked.
    """

    def __init__(self, config: EngineConfig, max_model_len: int) -> None:
        self.config = config
        self.max_model_len = max_model_len

    @abstractmethod
    def schedule(self, server: Server) -> None:
        """Evict, grow and admit for the step that starts now."""

    def finish(self, server: Server, request: Request) -> None:
        """A request has its last token: its memory is free for the next step."""
        server.release(request)
