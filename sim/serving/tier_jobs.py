"""Users of a tier below the GPU's memory, and the jobs that copy for them."""

from collections.abc import Sequence

from mypy_extensions import mypyc_attr

from kvsim.allocators.texts import Keys
from kvsim.allocators.tiers.pieces import Piece
from kvsim.sim.serving.request import Request


@mypyc_attr(allow_interpreted_subclasses=True)
class User:
    """What is known of a request that may use the tier.

    Attributes
    ----------
    number : int
        Its name in the tier.
    ranges : list of Keys
        Keys of the chunks of its text.
    offered : int
        Chunks that were offered to the tier.
    stores : set of Job
        Its stores that have not ended.
    began_ps, loading : int
        When its load began, and how many tokens it brings.
    up_ps, up_until_ps : int
        For how long chunks for its next load came up from tiers below the host, and until when.
    loaded : bool
        Whether its load is over.
    promoted : bool
        Whether the loaded blocks can be found on the GPU.
    """

    __slots__ = (
        "began_ps",
        "finished",
        "loaded",
        "loading",
        "number",
        "offered",
        "promoted",
        "ranges",
        "request",
        "stores",
        "up_ps",
        "up_until_ps",
    )

    def __init__(self, request: Request, number: int) -> None:
        self.request = request
        self.number = number
        self.ranges: list[Keys] = []
        self.offered = self.began_ps = self.loading = 0
        self.up_ps = self.up_until_ps = 0
        self.stores: set[Job] = set()
        self.loaded = self.promoted = self.finished = False


@mypyc_attr(allow_interpreted_subclasses=True)
class Job:
    """Keys that are loaded from a tier, or stored there.

    Attributes
    ----------
    number : int
        In order of planning, loads and stores together.
    loads : bool
        From the tier to the GPU; otherwise the other way.
    owner : User
    pieces : sequence of Piece
        What it copies.
    chunks, blocks : sequences of int
        The tier's chunks and the GPU's blocks that it uses. Of a store of a request that has its memory, only
        the number of blocks counts: they are in its table.
    ends_ps : int
        When it ends, once it has begun.
    """

    __slots__ = ("begun", "blocks", "chunks", "ends_ps", "hurried", "loads", "number", "owner", "pieces")

    def __init__(  # noqa: PLR0917 - what a job is
        self,
        number: int,
        loads: bool,
        owner: User,
        pieces: list[Piece],
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
