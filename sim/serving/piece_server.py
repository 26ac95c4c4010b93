"""A server of a model with recurrent layers whose states are kept for prefixes: prompts in pieces.

A state exists only where a piece of a prompt ended, so pieces end at block ends, and what a piece leaves of
the step's budget goes to whoever comes next: several prompts may be under way at once, before and behind
sequences that decode. All that run are served in the order of their admission, as far as the budget reaches.
"""

from kvsim.sim.serving.request import State
from kvsim.sim.serving.server import Server


class PieceServer(Server):
    """A Server that lets the allocator say where pieces of prompts end."""

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
        budget, clock, progress = most, self.progress.clock, self.progress
        self._granted_clock = clock
        due, grown = set(self._growth.due(clock)), []
        for request in list(self.running.values()):
            if request.seq not in self.running or request.state is State.FINISHED:
                continue
            if request.state is State.DECODE:
                budget -= 1
                if request.seq in due:
                    self.step.changed = True
                    if self._make_room(request, progress.tokens(request)):
                        grown.append(request)
                continue
            tokens = min(request.known_tokens - request.computed, budget)
            tokens = self.allocator.piece(None, request.seq, request.computed, tokens, most)
            if tokens > 0 and self.continue_prefill(request, tokens):
                budget -= tokens
        for request in grown:
            if request.seq in self.running:
                self._plan_growth(request)
        return budget
