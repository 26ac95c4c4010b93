"""A server of a model with recurrent layers whose states are kept for prefixes: prompts in pieces.

A state exists only where a piece of a prompt ended, so pieces end at block ends, and what a piece leaves of
the step's budget goes to whoever comes next: several prompts may be under way at once, before and behind
sequences that decode. All that run are served in the order of their admission, as far as the budget reaches:
a piece that takes all of it leaves those behind without a token in this step, decoding ones too, as in vLLM.
"""

from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server


class PieceServer(Server):
    """A Server that lets the allocator say where pieces of prompts end.

    Attributes
    ----------
    passed_over : set of int
        Sequences that decode, but got no token in the last step.
    """

    passed_over: frozenset[int] = frozenset()

    def continue_in_order(self, most: int) -> int:
        """A token for each that decodes, a piece for each that does not yet; returns the rest of the budget.

        Parameters
        ----------
        most : int
            The token budget of the step.
        """
        if not self.prefill_held:
            self.grow_due()
            return most - self.progress.size
        budget, clock = most, self.progress.clock
        self._granted = self.step
        due, grown = set(self._growth.due(clock)), []
        for request in list(self.running.values()):
            if request.seq not in self.running or request.state is State.FINISHED:
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
            tokens = self.allocator.piece(None, request.seq, request.computed, tokens, most)
            if tokens > 0 and self.continue_prefill(request, tokens):
                budget -= tokens
        for request in grown:
            if request.seq in self.running:
                self._plan_growth(request)
        return budget

    def _grow(self, request: Request, due: bool) -> bool:
        """Give a decoding sequence room for its token; whether it grew."""
        if not due:
            return False
        self.step.changed = True
        return self._make_room(request, self.progress.tokens(request))

    def _pass_over(self, request: Request) -> None:
        """A decoding sequence gets no token in this step."""
        self._leave_decode(request)
        request.move(State.PREFILL)
        self.prefill_held += request.computed
        self.passed_over |= {request.seq}
        self.step.changed = True

    def _resume(self, request: Request) -> bool:
        """It gets one again; whether it grows for it."""
        self.passed_over -= {request.seq}
        self.start_decode(request)
        self.step.changed = True
        tokens = self.progress.tokens(request)
        if self.allocator.capacity(request.seq) >= tokens:
            return False
        self._growth.remove(request.seq, self._full_clock(request), request.finish_clock)
        return self._make_room(request, tokens)

    def evict(self, request: Request, requeue: bool = True, by: Request | None = None) -> None:
        """Preempt by recomputation."""
        self.passed_over -= {request.seq}
        super().evict(request, requeue, by)
