"""What an engine does between its steps: wait, and check what has ended alongside them."""

from typing import Final

MOST_IN_VAIN: Final = 1_000
"""Consecutive waits for transfers without a new token that are not an error yet."""


class Wakes:
    """When the engine checks again.

    Attributes
    ----------
    beside : bool
        Whether anything ends alongside the steps: a step that computes nothing then waits for it.
    before_ps : int
        Everything that ended before this time has been checked, in the last span or while idle.
    polls : bool
        Whether it checks continuously for ends while it computes nothing; otherwise once per step.
    outside : bool
        Whether what waits here may wait for another server, which then rings.
    works : bool
        Whether it decides without requests, because transfers are in flight that depend on decisions.
    waits : int
        How often time passed without a step.
    in_vain : int
        How often only transfers ended since the last token, while requests waited.
    in_circles : str
        Why transfers here can go on in vain forever, and what ends it.
    loaded, passed_over : int
        Requests whose load has ended and that wait to be scheduled; those that the last decision could not.
    """

    def __init__(self) -> None:
        self.beside = False
        self.polls = False
        self.before_ps = 0
        self.outside = False
        self.works = False
        self.waits = 0
        self.in_vain = 0
        self.in_circles = ""
        self.loaded = self.passed_over = 0
        self._tokens = -1

    def note_vain(self, tokens: int) -> bool:
        """Only transfers have ended; `tokens` were computed in all. Whether this would go on forever."""
        if tokens != self._tokens:
            self._tokens, self.in_vain = tokens, 0
        self.in_vain += 1
        return self.in_vain > MOST_IN_VAIN
