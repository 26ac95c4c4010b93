"""Who uses a tier below the GPU's memory, and the jobs that copy for them."""

from collections.abc import Sequence

from kvsim.allocators.texts import Keys
from kvsim.allocators.tiers.pieces import Piece
from kvsim.sim.serving.request import Request


class User:
    """What is known of a request that may use the tier.

    Attributes
    ----------
    number : int
        The tier knows it by that.
    keys : list of int
        Of the blocks of its text, in a second pool.
    ranges : list of Keys
        Of the chunks of its text, in a tier.
    offered : int
        Chunks that were offered.
    stores : set of Job
        Those that have not ended.
    began_ps : int
        When its load began.
    loaded : bool
        Whether its load is over.
    promoted : bool
        Whether what was loaded can be found on the GPU.
    """

    __slots__ = (
        "began_ps",
        "finished",
        "keys",
        "loaded",
        "number",
        "offered",
        "promoted",
        "ranges",
        "request",
        "stores",
    )

    def __init__(self, request: Request, number: int, keys: list[int]) -> None:
        self.request = request
        self.number = number
        self.keys = keys
        self.ranges: list[Keys] = []
        self.offered = self.began_ps = 0
        self.stores: set[Job] = set()
        self.loaded = self.promoted = self.finished = False


class Job:
    """Keys that are loaded from a tier, or stored there.

    Attributes
    ----------
    number : int
        Jobs are numbered as they are planned, loads and stores together.
    loads : bool
        From the tier to the GPU; else the other way.
    owner : User
        For whom it is.
    pieces : sequence of Piece
        What it copies.
    chunks, blocks : sequences of int
        The tier's chunks and the GPU's blocks that it uses.
    ends_ps : int
        When it ends, once it began.
    """

    __slots__ = ("begun", "blocks", "chunks", "ends_ps", "hurried", "loads", "number", "owner", "pieces")

    def __init__(  # noqa: PLR0917 - what a job is
        self,
        number: int,
        loads: bool,
        owner: User,
        pieces: Sequence[Piece],
        chunks: Sequence[int],
        blocks: Sequence[int],
    ) -> None:
        self.number = number
        self.loads = loads
        self.owner = owner
        self.pieces = pieces
        self.chunks = chunks
        self.blocks = blocks
        self.ends_ps = 0
        self.begun = self.hurried = False
