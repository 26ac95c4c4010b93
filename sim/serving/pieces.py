"""Prompts in pieces: several may be in progress at once, before and after decoding sequences.

This applies if a step computes at most so many tokens of a prompt (`long_prefill_token_threshold`), and for
models with recurrent layers, whose states are kept for prefixes: a state exists only where a piece of a
prompt ended, so pieces end at block ends. The budget that a piece leaves goes to the next one.

Running requests are served in the order of admission, as far as the budget reaches: a piece that takes all of
it leaves later ones without a token in this step, even decoding ones, as in vLLM. By priority, a victim may
already have been served in this step: its tokens go back to the budget, and its piece is undone. But what the
piece would have filled is already in the prefix cache by then, and stays there, as in vLLM.
"""

from typing import NamedTuple

from kvsim.sim.serving.decision import NO_PROMPTS
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server


class Piece(NamedTuple):
    """A piece of a prompt that this step computes, and the request's progress before it."""

    request: Request
    start: int
    tokens: int
    reached: int


class Pieces:
    """Schedules running requests in the order of admission.

    Parameters
    ----------
    threshold : int
        Most tokens of one prompt per step, while there are other requests; 0: no limit but the budget.
    alone : bool
        Whether that also holds for a request that is alone on the server.

    Attributes
    ----------
    passed_over : set of int
        Decoding sequences that got no token in the last step. Ids of preempted ones may remain: they are
        never reused.
    """

    def __init__(self, server: Server, threshold: int = 0, alone: bool = False) -> None:
        self.server, self.batch = server, server.batch
        self.passed_over: set[int] = set()
        self._threshold, self._alone = threshold, alone
        self._ends = server.memory.abilities.ends_pieces

    def most(self, budget: int) -> int:
        """Most tokens of one prompt that this step may compute."""
        server = self.server
        if self._threshold and (self._alone or len(server.running) + len(server.waiting) > 1):
            return min(budget, self._threshold)
        return budget

    def continue_in_order(self, most: int) -> int:
        """One token per decoding sequence, one piece per other; returns the rest of the budget.

        Parameters
        ----------
        most : int
            The token budget of the step.
        """
        server, batch = self.server, self.batch
        if not server.prefill_held:
            server.grow_due()
            return most - server.decoding
        budget, due = most, set(batch.due_one_by_one(server.step))
        grown: list[int] = []
        longest = self.most(most)
        pieces: list[Piece] = []
        decoded: list[Request] = []
        for request in list(server.running.values()):
            if request.seq not in server.running or request.state is State.FINISHED:
                continue
            preempted = server.step.preemptions
            decodes = request.state is State.DECODE
            if decodes or request.seq in self.passed_over:
                if budget > 0:
                    decoded.append(request)
                    if not decodes:
                        self._resume(request)
                    elif request.seq in due and self._grow(request):
                        grown.append(request.seq)
                elif decodes:
                    self._pass_over(request)
            else:
                start, reached = request.computed, request.reached
                tokens = min(request.known_tokens - start, longest, budget)
                if self._ends is not None:
                    tokens = self._ends.piece(None, request.seq, start, tokens, most)
                if tokens > 0 and server.continue_prefill(request, tokens):
                    pieces.append(Piece(request, start, tokens, reached))
            if server.step.preemptions != preempted:
                self._undo(pieces)
            budget = most - (server.step.prompts or NO_PROMPTS).tokens
            budget -= sum([one.seq in server.running and one.state is State.DECODE for one in decoded])
        batch.grew([seq for seq in grown if seq in server.running])
        return budget

    def _undo(self, pieces: list[Piece]) -> None:
        """A request was preempted: undo the pieces of those that are gone."""
        for piece in pieces[:]:
            request, start, tokens, reached = piece
            if request.state is State.WAITING:
                pieces.remove(piece)
                request.reached = reached
                self.server.step.undo(request, start, tokens)
                request.reached = max(reached, start)

    def _grow(self, request: Request) -> bool:
        """Give a decoding sequence room for its token; False: it was preempted."""
        self.server.step.changed = True
        return self.server.make_room(request, self.server.progress.tokens(request))

    def _pass_over(self, request: Request) -> None:
        """A decoding sequence gets no token in this step."""
        self.batch.leave(request)
        request.move(State.PREFILL)
        self.server.memory.prefill_held += request.computed
        self.passed_over.add(request.seq)
        self.server.step.changed = True

    def _resume(self, request: Request) -> None:
        """A sequence that was passed over gets a token again."""
        server = self.server
        self.passed_over.discard(request.seq)
        server.start_decode(request)
        server.step.changed = True
        tokens = server.progress.tokens(request)
        if server.allocator.capacity(request.seq) < tokens:
            self.batch.forget_growth(request)
            if server.make_room(request, tokens):
                self.batch.plan_growth(request)
