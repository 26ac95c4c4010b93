"""One end of a migration: what happens to a request and its blocks in the memory of one server.

    target   hold        allocate the blocks that come first; more before each later stage
             enter       all have arrived: it goes on decoding from the next boundary
             let_go      they are not wanted: free them
    source   stop        it stops decoding, and keeps its blocks
             leave       they are copied: free them
             resume      there was no room elsewhere: it goes on decoding here

Requests that hold blocks in between are in `batch.moving`. A request stops and enters when its engine hears
of arrivals (input_queue.py): between two steps; in an asynchronous engine one step later.
"""

from collections.abc import Callable

from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.request import Request, State


class Mover:
    """Moves requests out of a replica, and lets others in."""

    def __init__(self, replica: Replica) -> None:
        self.replica, self.server = replica, replica.server
        self.events = replica.server.events
        self._acts: dict[int, Callable[[], None]] = {}  # by name of a request: what to do with it
        replica.input_queue.hear = self._hear

    def at_boundary(self, request: Request, act: Callable[[], None]) -> None:
        """Let the engine do something with a request when it hears of it."""
        self._acts[request.own] = act
        self.replica.tell(request)

    def _hear(self, request: Request) -> None:
        act = self._acts.pop(request.own, None)
        if act is None:
            self.server.waiting.append(request)
        else:
            act()

    @property
    def preempted_waits(self) -> bool:
        """Whether the head of the queue is a preempted request."""
        waiting = self.server.waiting
        return len(waiting) > 0 and waiting[0].preemptions > 0

    def candidate(self) -> Request | None:
        """The decoding request of the lowest priority, with the fewest tokens."""
        stored = self.server.progress.stored
        decoding = [each for each in self.server.running.values() if each.state == State.DECODE]
        return min(decoding, key=lambda r: (-r.priority, stored(r), r.seq), default=None)

    def blocks(self, request: Request) -> int:
        """Blocks of its table."""
        allocator = self.server.allocator
        return -(-allocator.capacity(request.seq) // allocator.block_slots)

    # -- the target ---------------------------------------------------------------------------

    def can_hold(self, request: Request) -> bool:
        """Whether an empty memory has room for all of a request: that of another pool may be smaller."""
        return self.server.allocator.fits(request.final_tokens, self.server.most_reserved(request))

    def hold(self, request: Request, tokens: int) -> Request | None:
        """Allocate for the first tokens of a request that runs elsewhere; None: no room.

        The prefix cache is not searched: all blocks are copied.
        """
        memory, allocator, seq = self.server.memory, self.server.allocator, self.server.memory.admissions
        bound = self.server.rules.bound(request)
        if memory.prefixes is None:
            fits = allocator.admit(seq, tokens, bound)
        else:
            nothing = memory.prefixes.match(request.content, request.own, 0)
            fits = memory.admit_after(nothing, seq, tokens, bound)
        if not fits:
            return None
        guest = Request(request.index, request.prompt_tokens, request.output_tokens)
        guest.own, guest.seq = request.own, memory.new_seq()
        self.server.batch.moving[seq] = guest
        self._note(guest, tokens)
        return guest

    def hold_more(self, guest: Request, tokens: int) -> bool:
        """Grow to `tokens` in all; False: no room."""
        fits = self.server.allocator.grow(guest.seq, tokens)
        if fits:
            self._note(guest, tokens)
        return fits

    def _note(self, guest: Request, tokens: int) -> None:
        """Note that it holds `tokens` tokens now."""
        memory = self.server.memory
        if self.events:
            self.events.changed = True
        memory.prefill_held += tokens - guest.computed
        guest.computed = tokens
        memory.set_internal(guest, max(0, self.server.allocator.surplus(guest.seq, guest.final_tokens)))

    def let_go(self, guest: Request) -> None:
        """Free what was held; none of it can be found."""
        memory = self.server.memory
        del self.server.batch.moving[guest.seq]
        memory.prefill_held -= guest.computed
        memory.set_internal(guest, 0)
        if self.events:
            self.events.changed = True
        self.server.allocator.release(guest.seq)

    def enter(self, request: Request, guest: Request, now_ps: int) -> None:
        """Go on decoding, in the memory held for it."""
        memory = self.server.memory
        del self.server.batch.moving[guest.seq]
        request.seq, request.internal = guest.seq, guest.internal
        request.sample += 1  # the events count it as another stay
        if self.events:
            self.events.moved("move_in", request, now_ps, self.server.steps)
        if memory.prefixes is not None:
            memory.prefixes.fill(request.seq, request.computed)
        self._run(request, now_ps)

    # -- the source ---------------------------------------------------------------------------

    def stop(self, request: Request) -> None:
        """Stop decoding, and keep the memory."""
        server = self.server
        server.batch.leave(request)
        request.move(State.PREFILL)
        server.memory.prefill_held += request.computed
        del server.running[request.seq]
        server.batch.moving[request.seq] = request

    def tell_stop(self, request: Request) -> None:
        """Record that it leaves: there is room elsewhere."""
        if self.events:
            self.events.moved("move_out", request, self.server.now_ps, self.server.steps - 1)

    def leave(self, request: Request) -> None:
        """Free its memory; its prefix can be found."""
        memory = self.server.memory
        if self.events:
            self.events.changed = True
        del self.server.batch.moving[request.seq]
        memory.prefill_held -= request.computed
        memory.free(request)

    def resume(self, request: Request, now_ps: int) -> None:
        """Go on decoding here."""
        del self.server.batch.moving[request.seq]
        self._run(request, now_ps)

    def _run(self, request: Request, now_ps: int) -> None:
        """Run it as the last of the decoding requests; prefilling requests stay behind them."""
        running = self.server.running
        prefilling = [each for each in running.values() if each.state == State.PREFILL]
        running[request.seq] = request
        for each in prefilling:
            running[each.seq] = running.pop(each.seq)
        self.server.batch.join(request, now_ps)
