"""What a sequence holds where layers are kept in groups: a row of blocks for each stretch of its tokens.

    blocks    f0 w0 v0 | f1 w1 v1 | f2 w2 v2 | f3 w3 v3       groups f (full), w and v (windowed)
              '- behind = 2 -------'                          w0 v0 w1 v1 were freed; length = 4

Which groups free what is behind, and when, is for the allocator to say (windowed.py, hybrid/uncached.py).
"""


class Holding:
    """The blocks of a sequence.

    Attributes
    ----------
    blocks : list of int
        Block i of group g is `blocks[i * groups + g]`; what was freed stands there still.
    length : int
        Blocks of a group, freed ones included.
    behind : int
        Blocks that each windowed group has freed.
    start, tokens : int
        The tokens that it had before its last piece, or step that changed anything, and after that.
    expired : int
        Slots that the sequence has freed.
    """

    __slots__ = ("behind", "blocks", "expired", "length", "start", "tokens")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.length = self.behind = self.start = self.tokens = self.expired = 0

    def __repr__(self) -> str:
        return f"{self.length} blocks in each group, {self.behind} behind the window"
