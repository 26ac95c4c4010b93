"""The prefill side of a hand-over, as vLLM's NIXL connector keeps it: blocks are held until they are read.

    prompt computed   the request leaves the batch, its blocks stay allocated; a lease begins
    heartbeat         the decode side still needs them: the lease is extended
    read, or expired  the blocks are free after the step in which that is seen

Held blocks are in no queue and take no seat and no budget; to every other request they count as used.
In the ledger they are a separate kind; one that a running request has found in the cache is `token`.
Follows vLLM 0.33.0 (pull mode). Where prompts are pushed, they are "read" when their last piece has arrived.
"""

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import ClassVar

from kvsim.allocators.base import InvariantError
from kvsim.allocators.paged import Paged
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.sim.serving.batch import Batch
from kvsim.sim.serving.decision import NEVER_PS
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Rules, Server


class Leases:
    """Until when prompts are held, and the messages about them from the decode side.

    Parameters
    ----------
    first_ps, more_ps : int
        How long a prompt is held without a message: from its finish, and from a heartbeat.

    Attributes
    ----------
    ends_ps : dict of int
        By name, until when each prompt is held.
    """

    def __init__(self, first_ps: int, more_ps: int) -> None:
        self.first_ps, self.more_ps = first_ps, more_ps
        self.ends_ps: dict[int, int] = {}
        self._told: list[tuple[int, bool, int]] = []  # (when the message arrives, was it read?, name)
        self._heartbeats: list[tuple[int, tuple[int, ...]]] = []

    def begin(self, name: int, now_ps: int) -> None:
        """A prompt is computed."""
        self.ends_ps[name] = now_ps + self.first_ps

    def rename(self, name: int, new: int) -> None:
        """A prompt has another name from now on; messages about the old one are void."""
        self.ends_ps[new] = self.ends_ps.pop(name)
        self._told = [each for each in self._told if each[2] != name]

    def let_go(self, name: int, at_ps: int, read: bool) -> None:
        """A prompt was read, or will not be: the message arrives at `at_ps`."""
        self._told.append((at_ps, read, name))

    def heartbeat(self, names: Iterable[int], at_ps: int) -> None:
        """These prompts are still wanted."""
        self._heartbeats.append((at_ps, tuple(names)))

    def settle(self, began_ps: int) -> tuple[list[int], list[int]]:
        """What arrived by `began_ps` is known: names read by then, and names whose lease had expired."""
        ends_ps = self.ends_ps
        for at_ps, names in [each for each in self._heartbeats if each[0] <= began_ps]:
            self._heartbeats.remove((at_ps, names))
            for name in names:
                if name in ends_ps:
                    ends_ps[name] = max(ends_ps[name], began_ps + self.more_ps)
        seen = [each for each in self._told if each[0] <= began_ps]
        for each in seen:
            self._told.remove(each)
        seen.sort(key=itemgetter(0, 1))
        read = [name for _, _, name in seen if name in ends_ps]
        for name in read:
            del ends_ps[name]
        expired = [name for name, end_ps in ends_ps.items() if end_ps <= began_ps]
        for name in expired:
            del ends_ps[name]
        return read, expired

    def next_ps(self) -> int:
        """When the next message arrives, or the next lease without a message ends."""
        told = [at_ps for at_ps, _, _ in self._told]
        return min(told + list(self.ends_ps.values()), default=NEVER_PS)


class HoldingServer(Server):
    """A prefill server, which keeps the memory of prompts that it has computed.

    Parameters
    ----------
    leases : Leases
        Until when each prompt is held.
    hand_over : callable
        Called with a request whose prompt is computed, and the blocks that hold it.

    Attributes
    ----------
    answers : set of int
        Names (`own`) of requests that it answers itself: it is in the mixed pool (mixed_pool.py).
    held : dict of Request
        By name, in the order in which they finished.
    freed : list of (int, int, int)
        Blocks that were freed: the row, when its prompt was computed, and when they were freed.
    peak_held : int
        The most slots held at once (`held_slots`).
    """

    holds: ClassVar[bool] = True

    def __init__(
        self,
        batch: Batch,
        rules: Rules,
        leases: Leases,
        hand_over: Callable[[Request, tuple[int, ...]], None],
    ) -> None:
        super().__init__(batch, rules)
        self.leases, self.hand_over = leases, hand_over
        assert isinstance(batch.allocator, Paged | SglangCached)
        self._tables = batch.allocator
        self.answers: set[int] = set()
        self.held: dict[int, Request] = {}
        self.freed: list[tuple[int, int, int]] = []
        self.peak_held = 0
        self._holders: dict[int, int] = {}  # held block -> how many of `held` have it
        self._part_empty = 0  # slots of last blocks after their tokens
        self._since_ps: dict[int, int] = {}
        self._orphans = 0
        self._leaving: list[Request] = []  # seen to be read or expired in the current step

    def forget(self, name: int, at_ps: int) -> bool:
        """The reader of a request is gone at `at_ps`: its name may come again, for another prompt.

        Returns whether anything was held for it.
        """
        if name not in self.held:
            return False
        self._orphans -= 1  # its name from now on
        self.held[self._orphans] = self.held.pop(name)
        self.leases.rename(name, self._orphans)
        self.leases.let_go(self._orphans, at_ps, False)
        return True

    def finish(self, request: Request) -> None:
        """A prompt is computed: keep its blocks, and hand them over, unless it was answered here."""
        if request.own in self.answers:
            self.answers.remove(request.own)
            super().finish(request)
            return
        if self.events:
            self.events.handed_over(request, self.now_ps, self.steps - 1)
        del self.running[request.seq]
        self.batch.loading[request.seq] = request
        self.memory.prefill_held += request.computed
        self.held[request.own] = request
        self.leases.begin(request.own, self.now_ps)
        self._since_ps[request.seq] = self.now_ps
        blocks = self._blocks(request)
        for block in blocks:
            self._holders[block] = self._holders.get(block, 0) + 1
        self._part_empty += -request.computed % self.allocator.block_slots
        self._note_held()
        self.hand_over(request, blocks)

    def release(self, request: Request, comes_back: bool = False, unknown: int = 0) -> None:
        """Held blocks that it had hit are again counted as held only."""
        super().release(request, comes_back, unknown)
        self._note_held()

    def _note_held(self) -> None:
        self.peak_held = max(self.peak_held, self.held_slots())

    def _blocks(self, request: Request) -> tuple[int, ...]:
        """The blocks with its tokens."""
        blocks = -(-request.computed // self.allocator.block_slots)
        return self._tables.block_table(request.seq)[:blocks]

    def held_slots(self) -> int:
        """Slots with tokens that only held requests have."""
        held = len(self._holders)
        if held and self.allocator.shared_tokens:
            tables = [self._tables.block_table(seq) for seq in self.running]
            held -= len(self._holders.keys() & {block for table in tables for block in table})
        return held * self.allocator.block_slots - self._part_empty

    def settle(self, began_ps: int) -> tuple[list[int], list[int]]:
        """A step that began at `began_ps` is over: names read by then, and names whose lease had expired."""
        read, expired = self.leases.settle(began_ps)
        self._leaving += [self.held.pop(name) for name in read + expired]
        return read, expired

    def free_settled(self) -> None:
        """Free what was seen to be read or expired in a step that is over."""
        for request in self._leaving:
            self.freed.append((request.index, self._since_ps.pop(request.seq), self.now_ps))
            self._part_empty -= -request.computed % self.allocator.block_slots
            for block in self._blocks(request):
                self._holders[block] -= 1
                if not self._holders[block]:
                    del self._holders[block]
            del self.batch.loading[request.seq]
            self.memory.prefill_held -= request.computed
            self.memory.free(request)
        self._leaving.clear()

    def _preempt_departed(self, request: Request) -> None:
        """Its token in flight is dropped: the prompt is computed again, unless it was answered here."""
        if request.own in self.answers:
            self.answers.remove(request.own)
            super()._preempt_departed(request)
            return
        del self.batch.departed[request.seq]
        self.release(request, comes_back=True)
        request.state, request.preemptions = State.WAITING, request.preemptions + 1
        request.reached = max(request.reached, request.computed)
        request.computed = request.generated = 0
        self.waiting.appendleft(request)
        self.step.preempt()
        self._note_preemption(request)

    def check(self) -> None:
        """Check as in any server, and count held slots from the layout."""
        super().check()
        lengths, held = self.lengths(), self.batch.loading.keys()
        regions = (each for each in self.allocator.layout().regions() if each.owners)
        found = sum(each.filled(lengths) for each in regions if held >= set(each.owners))
        if found != self.held_slots():
            raise InvariantError(f"step {self.steps}: {self.held_slots()} slots are held, but {found}")

    def abort(self, request: Request) -> None:
        """A client leaves between two steps; for held blocks the decode side says so."""
        if request.state == State.WAITING:
            self.waiting.remove(request)
            return
        if self.batch.departed.pop(request.seq, None) is None:
            self.memory.prefill_held -= request.computed
        self.release(request)
        request.state = State.FINISHED
