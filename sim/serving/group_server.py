"""A server whose requests may be several sequences: they fork, and are swapped together.

A forked sequence shares all blocks with its parent until it writes: its *first write* may copy the last
block (copy-on-write). Until then nobody knows when it must grow, so it stands in `_unwritten` and not yet
in the calendar of growth.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import Allocator, InvariantError
from kvsim.sim.serving.progress import Progress
from kvsim.sim.serving.request import Group, Request, State
from kvsim.sim.serving.server import Server

_ARRIVAL = attrgetter("index")


@mypyc_attr(allow_interpreted_subclasses=True)
class GroupServer(Server):
    """What vLLM V0 needs beyond a Server.

    Attributes
    ----------
    groups : dict of Group
        Those that run, in order of admission.
    swapped_groups : list of Group
        Those in the host pool.
    """

    may_work_in_spans = False
    shares = True

    def __init__(
        self,
        allocator: Allocator,
        bound: Callable[[Request], int],
        policy: str = "fcfs",
        publishes_late: bool = False,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(allocator, bound, policy, publishes_late, progress)
        self.groups: dict[Group, None] = {}
        self.swapped_groups: list[Group] = []
        self._unwritten: dict[int, bool] = {}  # whether their growth is planned all the same

    # -- in and out ---------------------------------------------------------------------------

    def group_of(self, request: Request) -> Group:
        """The group of a request."""
        if request.group is None:
            raise InvariantError(f"request {request.index} belongs to no group")
        return request.group

    def enter(self, request: Request) -> None:
        """The head of the queue was admitted: its group runs."""
        group = self.group_of(request)
        self.groups[group] = None
        self.margin = max(self.margin, group.seats)

    def leave(self, request: Request) -> None:
        """A sequence is done with its memory."""
        group = self.group_of(request)
        group.sequences.remove(request)
        self.release(request)
        self._settle(group)
        if not group.sequences:
            del self.groups[group]

    def drop_running(self, group: Group, reason: str) -> None:
        """A group must make room and cannot be kept."""
        for request in group.sequences:
            self._leave_decode(request)
            request.move(State.FINISHED)
            self.release(request)
        del self.groups[group]
        self.step.evict()
        self._reject(group, reason)

    def drop_swapped(self, group: Group, reason: str) -> None:
        """A swapped group can never come back."""
        for request in group.sequences:
            self.allocator.release(request.seq)
        self.swapped_groups.remove(group)
        self.swapped -= len(group.sequences)
        self._reject(group, reason)

    def _reject(self, group: Group, reason: str) -> None:
        self.step.reject(group.index, reason, sum(each.preemptions for each in group.sequences))

    # -- forking ------------------------------------------------------------------------------

    def start_group(self, request: Request) -> None:
        """The prompt is done and gave a token: fork off the other samples, or the other candidates."""
        group = self.group_of(request)
        if group.beam_width > 1:
            samples = [request.as_sample(0, request.output_tokens) for _ in range(group.beam_width - 1)]
        else:
            *others, last = group.lengths
            samples = [request.as_sample(sample, length) for sample, length in enumerate(others)]
            request.sample = len(others)
            request.set_output(last)
        group.lengths = []
        for sample in samples:
            self._fork(request, sample)
            sample.move(State.PREFILL)
            self.prefill_held += sample.computed
        group.sequences += samples
        for sequence in group.sequences:
            if sequence.generated < sequence.output_tokens:
                sequence.move(State.DECODE)
                self.prefill_held -= sequence.computed
                self.progress.join(sequence, self.now_ps)
                self._unwritten[sequence.seq] = False
            else:
                self.prefill_held -= sequence.computed
        self._set_internal(request, 0)
        self._settle(group)

    def _fork(self, parent: Request, child: Request) -> None:
        """Let a new sequence share all that its parent holds."""
        decodes = parent.state == State.DECODE
        child.computed = self.progress.stored(parent) if decodes else parent.computed
        child.generated, child.known_tokens = parent.generated, parent.known_tokens
        child.reached, child.last_token_ps = parent.reached, parent.last_token_ps
        child.first_scheduled_ps, child.first_token_ps = parent.first_scheduled_ps, parent.first_token_ps
        child.first_scheduled_step = parent.first_scheduled_step
        child.first_token_step = parent.first_token_step
        child.seq = self._next_seq
        self._next_seq += 1
        copied = self.allocator.copied_slots
        if not self.allocator.fork(parent.seq, child.seq, child.computed):
            raise InvariantError(f"sequence {parent.seq} was refused a fork")
        self.running[child.seq] = child
        if self.events:
            self.events.forked(child, self.now_ps, self.steps)
            self.events.copied(child, self.now_ps, self.steps, self.allocator.copied_slots - copied)

    def _settle(self, group: Group) -> None:
        """Write down what those who have not written yet will never fill, of blocks that they own alone."""
        for request in group.sequences:
            if request.seq in self._unwritten:
                self._set_internal(
                    request, max(self.allocator.capacity(request.seq) - request.final_tokens, 0)
                )

    # -- writing ------------------------------------------------------------------------------

    def grow_freely(self) -> bool:
        """Give all who decode the slots of this step; if any group may find too little, do nothing."""
        unwritten, takers = self._unwritten, self._growth.due(self.progress.clock)
        writers = {*takers, *unwritten} if unwritten else None
        count = len(takers) if writers is None else len(writers)
        if self.allocator.free_slots < (count + self.margin) * self.allocator.growth_unit:
            return False
        if writers is None:
            self.grow_due()
        else:
            self._write_first(writers)
        return True

    def _write_first(self, seqs: set[int]) -> None:
        """Give these sequences their slots, in the order of the groups; all others have theirs."""
        changed = self.step.changed
        groups = {self.group_of(self.running[seq]) for seq in seqs}
        for group in sorted(groups, key=self.urgency):
            for request in group.sequences:
                if request.seq in seqs:
                    self.write(request)
        self.written()
        if not (changed or self.events) and self.progress.linear:
            self.step.changed, self.step.copies = False, True

    @property
    def urgency(self) -> Callable[[Group], Any]:
        """What groups are sorted by: by priority where that is the policy, else in order of arrival."""
        return _priority if self.rules.policy == "priority" else _ARRIVAL

    def write(self, request: Request) -> None:
        """Give a decoding sequence the slot of this step's token, for which there is room."""
        seq, tokens, copied = request.seq, self.progress.tokens(request), self.allocator.copied_slots
        if self.allocator.capacity(seq) < tokens and not self.allocator.grow(seq, tokens):
            raise InvariantError(f"sequence {seq} got no slot for its token {tokens}")
        if self.events:
            self.events.copied(request, self.now_ps, self.steps, self.allocator.copied_slots - copied)
        if self._unwritten.pop(seq, True) is False:
            self._plan_growth(request)

    def written(self) -> None:
        """All decoding sequences have the slots of this step."""
        self.step.changed = True
        self._granted = self.step
        for seq in self._growth.pop_full(self.progress.clock):
            request = self.running[seq]
            self._set_internal(request, self.allocator.capacity(seq) - request.final_tokens)

    def _leave_decode(self, request: Request) -> None:
        super()._leave_decode(request)
        self._unwritten.pop(request.seq, None)

    # -- preempting ---------------------------------------------------------------------------

    def evict(self, request: Request, requeue: bool = True, by: Request | None = None) -> None:
        """Preempt a group of one sequence by recomputation."""
        super().evict(request, requeue, by)
        del self.groups[self.group_of(request)]

    def swap_out(self, group: Group, by: Request | None = None) -> bool:
        """Preempt a group, for what `by` needs, by moving it to the host pool; False: no room there."""
        allocator, seqs = self.allocator, [request.seq for request in group.sequences]
        slots = allocator.slots_held(seqs)
        if slots > allocator.host_capacity_slots - allocator.host_used_slots:
            return False
        for request in group.sequences:
            self._leave_decode(request)
            request.move(State.SWAPPED)
            del self.running[request.seq]
            self._set_internal(request, 0)
            allocator.fill(request.seq, request.computed)
            if self.events:
                self.events.left("swap_out", request, self.now_ps, self.steps, by)
        if not allocator.swap_out(seqs):
            raise InvariantError(f"sequences {seqs} found no room to be swapped out")
        group.sequences[0].preemptions += 1
        del self.groups[group]
        self.swapped_groups.append(group)
        self.swapped += len(group.sequences)
        self.step.swapped_out_blocks += slots // allocator.growth_unit
        self.totals.swapped_out_blocks += slots // allocator.growth_unit
        self.totals.swap_outs += 1
        self.step.evict()
        return True

    def swap_in(self, group: Group) -> None:
        """Bring a group back, for which there is room: it decodes in this step."""
        seqs = [request.seq for request in group.sequences]
        blocks = self.allocator.slots_held(seqs) // self.allocator.growth_unit
        self.step.swapped_in_blocks += blocks
        self.totals.swapped_in_blocks += blocks
        if not self.allocator.swap_in(seqs):
            raise InvariantError(f"sequences {seqs} found no room to be swapped in")
        self.swapped_groups.remove(group)
        self.swapped -= len(seqs)
        self.groups[group] = None
        for request in group.sequences:
            request.move(State.DECODE)
            self.running[request.seq] = request
            self.progress.join(request, self.now_ps)
            self._unwritten[request.seq] = False
            if self.events:
                self.events.returned(request, self.now_ps, self.steps)
        self.step.changed = True


def _priority(group: Group) -> tuple[int, int]:
    return group.sequences[0].priority, group.index
