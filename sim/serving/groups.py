"""Groups of sequences on a server, as in vLLM V0: forked from one prompt, and swapped together."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from kvsim.allocators.base import InvariantError
from kvsim.sim.serving.group_batch import GroupBatch
from kvsim.sim.serving.request import Group, Request, State
from kvsim.sim.serving.server import Server

_ARRIVAL = attrgetter("index")
Urgency = Callable[[Group], Any]


def urgency_of(policy: str) -> Urgency:
    """Sort key of groups: by priority if that is the policy, else in order of arrival."""
    return _priority if policy == "priority" else _ARRIVAL


def _priority(group: Group) -> tuple[int, int]:
    return group.sequences[0].priority, group.index


class Groups:
    """The groups of one server.

    Parameters
    ----------
    server : Server
        Its batch is `batch`.

    Attributes
    ----------
    running : dict of Group
        Running groups, in order of admission.
    swapped : list of Group
        Groups in the host pool.
    urgency : callable
        Sort key of groups.
    forks, swaps : Branches, Swaps
        The server's allocator, for forking and swapping.
    """

    def __init__(self, server: Server, batch: GroupBatch) -> None:
        self.server, self.batch = server, batch
        forks, swaps = server.memory.abilities.branches, server.memory.abilities.swaps
        assert forks is not None
        assert swaps is not None
        self.forks, self.swaps = forks, swaps
        self.running: dict[Group, None] = {}
        self.swapped: list[Group] = []
        self.urgency = urgency_of(server.rules.policy)

    # -- in and out ---------------------------------------------------------------------------

    def enter(self, request: Request) -> None:
        """The head of the queue was admitted: its group runs."""
        group = request.its_group
        self.running[group] = None
        growth = self.batch.growth
        growth.margin = max(growth.margin, group.seats)

    def leave(self, request: Request) -> None:
        """A sequence no longer needs its memory."""
        group = request.its_group
        group.sequences.remove(request)
        self.server.release(request)
        self.batch.settle(group)
        if not group.sequences:
            del self.running[group]

    def drop_running(self, group: Group, reason: str) -> None:
        """A group must make room and cannot be kept."""
        for request in group.sequences:
            self.batch.leave(request)
            request.move(State.FINISHED)
            self.server.release(request)
        del self.running[group]
        self.server.step.preempt()
        self._reject(group, reason)

    def drop_swapped(self, group: Group, reason: str) -> None:
        """A swapped group can never come back."""
        for request in group.sequences:
            self.server.allocator.release(request.seq)
        self.swapped.remove(group)
        self.server.swapped -= len(group.sequences)
        self._reject(group, reason)

    def _reject(self, group: Group, reason: str) -> None:
        preemptions = sum(each.preemptions for each in group.sequences)
        self.server.step.reject(group.index, reason, preemptions)

    # -- forking ------------------------------------------------------------------------------

    def start(self, request: Request) -> None:
        """The prompt is done and has its first token: fork the other samples, or the other candidates."""
        group, server, memory = request.its_group, self.server, self.server.memory
        if group.beam_width > 1:
            samples = [request.as_sample(0, request.output_tokens) for _ in range(group.beam_width - 1)]
        else:
            *others, last = group.lengths
            samples = [request.as_sample(sample, length) for sample, length in enumerate(others)]
            request.sample = len(others)
            request.set_output(last)
        group.lengths = []
        for sample in samples:
            self.fork(request, sample)
            sample.move(State.PREFILL)
            memory.prefill_held += sample.computed
        group.sequences += samples
        for sequence in group.sequences:
            memory.prefill_held -= sequence.computed
            if sequence.generated < sequence.output_tokens:
                sequence.move(State.DECODE)
                self.batch.join_shared(sequence, server.now_ps)
        memory.set_internal(request, 0)
        self.batch.settle(group)

    def fork(self, parent: Request, child: Request) -> None:
        """Let a new sequence share everything its parent holds."""
        server = self.server
        child.computed = server.progress.stored(parent) if parent.is_decoding else parent.computed
        child.generated, child.known_tokens = parent.generated, parent.known_tokens
        child.reached, child.last_token_ps = parent.reached, parent.last_token_ps
        child.first_scheduled_ps, child.first_token_ps = parent.first_scheduled_ps, parent.first_token_ps
        child.first_scheduled_step = parent.first_scheduled_step
        child.first_token_step = parent.first_token_step
        child.seq = server.memory.new_seq()
        copied = server.allocator.copied_slots
        if not self.forks.fork(parent.seq, child.seq, child.computed):
            raise InvariantError(f"sequence {parent.seq} was refused a fork")
        server.running[child.seq] = child
        if server.events:
            server.events.forked(child, server.now_ps, server.steps)
        self._copied(child, copied)

    def _copied(self, request: Request, before: int) -> None:
        """Record the slots that were copied for a sequence."""
        server = self.server
        if server.events:
            copied = server.allocator.copied_slots - before
            server.events.copied(request, server.now_ps, server.steps, copied)

    # -- writing ------------------------------------------------------------------------------

    def grow_freely(self) -> bool:
        """Give all decoding sequences their slots of this step; do nothing if there may be too few."""
        batch = self.batch
        unwritten, takers = batch.unwritten, batch.growth.due(batch.progress.clock)
        writers = {*takers, *unwritten} if unwritten else None
        count = len(takers) if writers is None else len(writers)
        if batch.allocator.free_slots < (count + batch.growth.margin) * batch.allocator.growth_unit:
            return False
        if writers is None:
            self.server.grow_due()
        else:
            self._write_first(writers)
        return True

    def _write_first(self, seqs: set[int]) -> None:
        """Give these sequences their slots, in the order of the groups; all others have theirs already."""
        step, running = self.server.step, self.server.running
        changed = step.changed
        for group in sorted({running[seq].its_group for seq in seqs}, key=self.urgency):
            for request in group.sequences:
                if request.seq in seqs:
                    self.write(request)
        self.batch.written(step)
        if not (changed or self.server.events) and self.batch.progress.linear:
            step.changed, step.of_validity().copies = False, True

    def write(self, request: Request) -> None:
        """Give a decoding sequence the slot of this step's token; there must be room."""
        copied = self.server.allocator.copied_slots
        self.batch.write(request)
        self._copied(request, copied)

    # -- preempting ---------------------------------------------------------------------------

    def preempt(self, request: Request, requeue: bool = True, by: Request | None = None) -> None:
        """Preempt a group of one sequence by recomputation."""
        self.server.preempt(request, requeue, by)
        del self.running[request.its_group]

    def swap_out(self, group: Group, by: Request | None = None) -> bool:
        """Preempt a group, because `by` needs memory, by moving it to the host pool; False: no room there."""
        server, allocator = self.server, self.server.allocator
        seqs = [request.seq for request in group.sequences]
        slots = self.swaps.slots_held(seqs)
        if slots > self.swaps.host_capacity_slots - self.swaps.host_used_slots:
            return False
        for request in group.sequences:
            self.batch.leave(request)
            request.move(State.SWAPPED)
            del server.running[request.seq]
            server.memory.set_internal(request, 0)
            server.memory.publish(request, server.step)
            if server.events:
                server.events.left("swap_out", request, server.now_ps, server.steps, by)
        if not self.swaps.swap_out(seqs):
            raise InvariantError(f"sequences {seqs} found no room to be swapped out")
        group.sequences[0].preemptions += 1
        del self.running[group]
        self.swapped.append(group)
        server.swapped += len(group.sequences)
        server.step.of_moves().swapped_out_blocks += slots // allocator.growth_unit
        server.totals.swapped_out_blocks += slots // allocator.growth_unit
        server.totals.swap_outs += 1
        server.step.preempt()
        return True

    def swap_in(self, group: Group) -> None:
        """Bring a group back; there must be room. It decodes in this step."""
        server, allocator = self.server, self.server.allocator
        seqs = [request.seq for request in group.sequences]
        blocks = self.swaps.slots_held(seqs) // allocator.growth_unit
        server.step.of_moves().swapped_in_blocks += blocks
        server.totals.swapped_in_blocks += blocks
        if not self.swaps.swap_in(seqs):
            raise InvariantError(f"sequences {seqs} found no room to be swapped in")
        self.swapped.remove(group)
        server.swapped -= len(seqs)
        self.running[group] = None
        for request in group.sequences:
            request.move(State.DECODE)
            server.running[request.seq] = request
            self.batch.join_shared(request, server.now_ps)
            if server.events:
                server.events.returned(request, server.now_ps, server.steps)
        server.step.changed = True
