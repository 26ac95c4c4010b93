"""What an engine does between its steps: wait, and look what has ended beside them."""

from typing import Final

MOST_IN_VAIN: Final = 1_000
"""Waits for transfers without a new token that are no error yet."""


class Wakes:
    """When it looks again.

    Attributes
    ----------
    beside : bool
        Whether anything ends beside the steps: a step that computes nothing then waits for it.
    before_ps : int
        A time before which it has looked what had ended, in the last span or while it was idle.
    polls : bool
        Whether it looks all the time what has ended while it computes nothing; else a step at a time.
    works : bool
        Whether it decides though nobody is there, as transfers are under way that its decisions follow.
    waits : int
        How often time passed without a step.
    in_vain : int
        How often nothing but transfers ended since anybody had a token, while somebody waited.
    """

    def __init__(self) -> None:
        self.beside = False
        self.polls = False
        self.before_ps = 0
        self.works = False
        self.waits = 0
        self.in_vain = 0
        self._tokens = -1

    def note_vain(self, tokens: int) -> bool:
        """Nothing but transfers has ended; `tokens` were computed in all. Whether it goes on for ever."""
        if tokens != self._tokens:
            self._tokens, self.in_vain = tokens, 0
        self.in_vain += 1
        return self.in_vain > MOST_IN_VAIN
