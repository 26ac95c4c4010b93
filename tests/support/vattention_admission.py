"""What vAttention's scheduler (sarathi-lean) knows of memory: kvblocks free, and kvblocks promised since.

    admit while   free - promised - ceil(tokens / page tokens)  >=  watermark of all, rounded down

`free` is updated once per step (pool plus the excess of rows over their need); `promised` then starts at 0.
The rule reserves nothing for running sequences: if the watermark is below one kvblock per running
sequence, a step can still run out of memory.

Source: sarathi-lean/sarathi/core/block_space_manager/vattention_block_space_manager.py of
microsoft/vattention ef3fff2.
"""


class Promises:
    """Free and promised kvblocks.

    Parameters
    ----------
    page_tokens : int
        Tokens per kvblock.
    kvblocks : int
        Total number of kvblocks.
    watermark : float
        Share of them that an admission leaves free; 1 % in the engine.

    Attributes
    ----------
    free, promised : int
        Kvblocks.
    active : dict of int
        Tokens of each admitted sequence.
    """

    def __init__(self, page_tokens: int, kvblocks: int, watermark: float = 0.01) -> None:
        self.page_tokens = page_tokens
        self.watermark = int(watermark * kvblocks)
        self.free = kvblocks
        self.promised = 0
        self.active: dict[int, int] = {}

    def can_admit(self, tokens: int) -> bool:
        """Whether a sequence of `tokens` tokens may start."""
        return self.free - self.promised - self._needed(tokens) >= self.watermark

    def admit(self, seq: int, tokens: int) -> None:
        """A sequence starts."""
        self.active[seq] = tokens
        self.promised += self._needed(tokens)

    def can_append(self, tokens: int | None = None) -> bool:
        """Whether a sequence of `tokens` tokens may get one more; None: whether there is a kvblock at all."""
        if tokens is not None and self._needed(tokens + 1) <= self._needed(tokens):
            return True
        return self.free > self.promised

    def append(self, seq: int) -> None:
        """An admitted sequence gets one more token."""
        tokens = self.active[seq]
        self.promised += self._needed(tokens + 1) - self._needed(tokens)
        self.active[seq] = tokens + 1

    def release(self, seq: int) -> None:
        """A sequence ends; one that was never admitted changes nothing."""
        self.free += self._needed(self.active.pop(seq, 0))

    def start_step(self, free: int) -> None:
        """A step begins with `free` kvblocks free and none promised."""
        self.free = free
        self.promised = 0

    def _needed(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)
