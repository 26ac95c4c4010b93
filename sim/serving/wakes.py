"""What an engine does between its steps: wait, and look what has ended beside them."""

from typing import Final

NEVER_PS: Final = 1 << 63


class Wakes:
    """When it looks again.

    Attributes
    ----------
    next_ps : int
        When something ends beside the steps that the next decision may depend on; `NEVER_PS`: nothing does.
    before_ps : int
        A time before which it has looked what had ended, in the last span or while it was idle.
    works : bool
        Whether it decides though nobody is there, as transfers are under way that its decisions follow.
    waits : int
        How often time passed without a step.
    """

    def __init__(self) -> None:
        self.next_ps = NEVER_PS
        self.before_ps = 0
        self.works = False
        self.waits = 0
