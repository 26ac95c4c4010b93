"""A batch whose sequences may share blocks: a fork shares all blocks with its parent until it writes.

Its *first write* may copy the last block (copy-on-write). Until then it is unknown when it must grow, so it
is in `unwritten` and not yet in the growth calendar.
"""

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import InvariantError
from kvsim.sim.serving.batch import Batch
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.request import Group, Request


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupBatch(Batch):
    """Sequences in groups that share blocks.

    Attributes
    ----------
    unwritten : dict of bool
        Sequences that have not written since they forked, or came back -> whether their growth is planned
        nevertheless.
    """

    may_work_in_spans = False
    shares = True

    def __init__(self, memory: KvMemory) -> None:
        super().__init__(memory)
        self.unwritten: dict[int, bool] = {}

    def join_shared(self, request: Request, now_ps: int) -> None:
        """A sequence decodes from the next decode step on, and may share its last block."""
        self.progress.join(request, now_ps)
        self.unwritten[request.seq] = False

    def share_again(self, request: Request) -> None:
        """A decoding sequence is forked: its last block is shared until either writes."""
        self.forget_growth(request)
        self.memory.set_internal(request, 0)
        self.unwritten[request.seq] = False

    def leave(self, request: Request) -> None:
        """As in `Batch`; it also leaves `unwritten`."""
        super().leave(request)
        self.unwritten.pop(request.seq, None)

    def settle(self, group: Group) -> None:
        """Record what sequences in `unwritten` will never fill of blocks that they own alone."""
        for request in group.sequences:
            if request.seq in self.unwritten:
                capacity = self.allocator.capacity(request.seq)
                self.memory.set_internal(request, max(capacity - request.final_tokens, 0))

    def write(self, request: Request) -> None:
        """Give a decoding sequence the slot of this step's token; there must be room."""
        seq, tokens = request.seq, self.progress.tokens(request)
        if self.allocator.capacity(seq) < tokens and not self.allocator.grow(seq, tokens):
            raise InvariantError(f"sequence {seq} got no slot for its token {tokens}")
        if self.unwritten.pop(seq, True) is False:
            self.plan_growth(request)

    def written(self, step: Decision) -> None:
        """All decoding sequences have the slots of this step."""
        step.changed = True
        self._granted = step
        for seq in self.growth.pop_full(self.progress.clock):
            request = self.running[seq]
            self.memory.set_internal(request, self.allocator.capacity(seq) - request.final_tokens)
