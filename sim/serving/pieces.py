"""Prompts in pieces, for models with recurrent layers whose states are kept for prefixes.

A state exists only where a piece of a prompt ended, so pieces end at block ends, and what a piece leaves of
the step's budget goes to whoever comes next: several prompts may be under way at once, before and behind
sequences that decode. All that run are served in the order of their admission, as far as the budget reaches:
a piece that takes all of it leaves those behind without a token in this step, decoding ones too, as in vLLM.
"""

from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server


class Pieces:
    """Serves a server in the order of admission; the allocator says where pieces of prompts end.

    Attributes
    ----------
    passed_over : set of int
        Sequences that decode, but got no token in the last step. Ids of preempted ones may stay: they never
        come back.
    """

    def __init__(self, server: Server) -> None:
        self.server, self.batch = server, server.batch
        self.passed_over: set[int] = set()

    def continue_in_order(self, most: int) -> int:
        """A token for each that decodes, a piece for each that does not yet; returns the rest of the budget.

        Parameters
        ----------
        most : int
            The token budget of the step.
        """
        server, batch = self.server, self.batch
        if not server.prefill_held:
            server.grow_due()
            return most - server.decoding
        budget, due, grown = most, set(batch.due_one_by_one(server.step)), []
        for request in list(server.running.values()):
            if request.seq not in server.running or request.state is State.FINISHED:
                continue
            decodes = request.state is State.DECODE
            if decodes or request.seq in self.passed_over:
                if budget > 0:
                    budget -= 1
                    if self._grow(request, request.seq in due) if decodes else self._resume(request):
                        grown.append(request)
                elif decodes:
                    self._pass_over(request)
                continue
            tokens = min(request.known_tokens - request.computed, budget)
            tokens = server.allocator.piece(None, request.seq, request.computed, tokens, most)
            if tokens > 0 and server.continue_prefill(request, tokens):
                budget -= tokens
        for request in grown:
            if request.seq in server.running:
                batch.plan_growth(request)
        return budget

    def _grow(self, request: Request, due: bool) -> bool:
        """Give a decoding sequence room for its token; whether it grew."""
        if not due:
            return False
        self.server.step.changed = True
        return self.server.make_room(request, self.server.progress.tokens(request))

    def _pass_over(self, request: Request) -> None:
        """A decoding sequence gets no token in this step."""
        self.batch.leave(request)
        request.move(State.PREFILL)
        self.server.memory.prefill_held += request.computed
        self.passed_over.add(request.seq)
        self.server.step.changed = True

    def _resume(self, request: Request) -> bool:
        """It gets one again; whether it grows for it."""
        server = self.server
        self.passed_over.discard(request.seq)
        server.start_decode(request)
        server.step.changed = True
        tokens = server.progress.tokens(request)
        if server.allocator.capacity(request.seq) >= tokens:
            return False
        self.batch.forget_growth(request)
        return server.make_room(request, tokens)
