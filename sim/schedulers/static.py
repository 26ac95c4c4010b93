"""Static: request-level batching, as by FasterTransformer behind a queue, or by plain `generate`.

If the engine is idle, take up to B of the earliest requests, where B is how many fit at the model's maximum
length; prefill them together and run until the *longest* is done. A request that finishes early keeps its
seat and memory (internal waste in the ledger, padding for the cost). No request enters in between.
"""

from typing import ClassVar

from mypy_extensions import mypyc_attr

from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server


@mypyc_attr(allow_interpreted_subclasses=True)
class Static(Scheduler):
    """Batches of whole requests, closed until the longest ends."""

    family: ClassVar[str] = "batches"
    idea: ClassVar[str] = "a batch is filled once and served until its last answer ends"
    serves_in_turn: ClassVar[tuple[str, ...]] = ("fcfs",)

    def schedule(self, server: Server) -> None:
        """Form a batch if nothing runs."""
        server.grow_due()
        self._end_batch_when_done(server)
        if server.running:
            return
        longest = server.allocator.slots_needed(self.max_model_len, self.max_model_len)
        seats = min(max(server.allocator.capacity_slots // longest, 1), self.config.max_num_seqs)
        while server.waiting and seats > 0 and server.admit_head(server.waiting[0].known_tokens):
            seats -= 1

    def held_back(self, server: Server) -> str:
        """No request enters before the batch is over."""
        return "batch"

    def finish(self, server: Server, request: Request) -> None:
        """Keep the seat until the whole batch is done."""
        server.keep_seat(request)
        self._end_batch_when_done(server)

    def _end_batch_when_done(self, server: Server) -> None:
        if server.seats.count == len(server.running):
            for request in list(server.running.values()):
                server.release(request)
            server.clear_seats()
