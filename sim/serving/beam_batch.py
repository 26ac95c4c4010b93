"""A batch for beam search: after each step some candidates are dropped, and others are duplicated.

    step k     candidates  a b c d        drawn: c is dropped, a is duplicated
    step k+1               a b d a'       a' shares all blocks of a; the first to write copies the last one

All candidates of a search have equally many tokens and the same end. So the new candidate takes over
everything that depends on these from the dropped one: only the blocks and the id change.

Drops, and what they copy, can be predicted (beam_search.py). So a span of steps continues past a drop if no
request waits and there is enough memory whatever is freed meanwhile.
"""

from collections.abc import Iterator

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import InvariantError
from kvsim.allocators.records import Id
from kvsim.sim.serving.beam import Drop
from kvsim.sim.serving.beam_search import Search
from kvsim.sim.serving.group_batch import GroupBatch
from kvsim.sim.serving.groups import Urgency
from kvsim.sim.serving.growth import Grown
from kvsim.sim.serving.memory import KvMemory
from kvsim.sim.serving.request import Group, Request

Fork = tuple[Id, Id, Id, int]
"""(replaced sequence, parent, child, tokens), as `Branches.fork_over` takes them."""

Writers = tuple[list[Id], int]
"""(sequences of a group, tokens that each of them reaches), as `Branches.branch` takes them."""


@mypyc_attr(allow_interpreted_subclasses=True)
class BeamBatch(GroupBatch):
    """Groups of candidates.

    Attributes
    ----------
    search : Search
        Which groups search, and what they drop.
    urgency : callable
        The order in which groups write.
    forks : Branches
        The allocator, for forking.
    watched : bool
        Whether every step is observed.
    """

    def __init__(self, memory: KvMemory, search: Search, urgency: Urgency) -> None:
        super().__init__(memory)
        forks = memory.abilities.branches
        assert forks is not None
        self.forks = forks
        self.search, self.urgency = search, urgency
        self.watched = False

    def watch(self, watched: bool, context_tile: int) -> None:
        """As in `Batch`, and remember it."""
        super().watch(watched, context_tile)
        self.watched = watched

    @property
    def alike(self) -> bool:
        """Whether a candidate may replace another one without any report."""
        return not (self.watched or self.allocator.caches) and self.progress.linear

    # -- looking ahead ------------------------------------------------------------------------

    def steps_behind(self, done: int, at_most: int, anybody_waits: bool) -> Iterator[tuple[int, int]]:
        """As in `Batch`, if no request waits for blocks that a drop frees and the copies are known."""
        if anybody_waits or not (self.alike and self.forks.copies_on_write):
            return
        search, unit, size = self.search, self.growth.unit, self.progress.size
        groups, clock, drops, copies = search.groups, self.progress.clock, search.drops, 0
        drop = drops[-1] if drops else None
        look_ahead = search.survivors.next_drop
        budget = self.allocator.growth_budget() - self.growth.margin
        while done < at_most:
            pairs = copied = 0
            end = at_most
            while drop is not None:
                step, place, dropped = drop
                if step > done:
                    end = min(step, at_most)
                    break
                pairs += len(dropped)
                copied += len(dropped) * ((groups[place].sequences[0].base + clock + done) % unit)
                drop = look_ahead(drops)
            copies += pairs
            if size * (end // unit + 1) + copies + pairs > budget:  # most that grow, copy, or might copy
                return
            yield end - done, copied
            done = end

    # -- a span -------------------------------------------------------------------------------

    def grow_within(self, ends: list[int]) -> Grown:
        """As in `Batch`, with the predicted drops."""
        drops, index, count = self.search.drops, 0, 0
        while count < len(drops) and drops[count][0] < len(ends):
            count += 1
        if not count:
            return super().grow_within(ends)
        allocator, growth, clock, total = self.allocator, self.growth, self.progress.clock, ends[-1]
        residues, unit, last = growth.residues, growth.unit, growth.last
        grown: list[int] = []  # grow before the next drop
        saved: list[tuple[int, int]] = []  # saved by sharing: (step, slots)
        held = used = internal = shared = step = 0
        at = drops[0][0]
        for start in ends[:-1]:
            step += 1
            clock += 1
            due = residues[clock % unit]
            if step == at:
                if grown:
                    allocator.grow_many(grown)
                    grown = []
                first, left = index, total - start
                while at == step:
                    index += 1
                    at = drops[index][0] if index < count else 0
                used_before, shared_before = allocator.used_slots, allocator.shared_tokens
                self._branch(drops[first:index], due, clock)
                more = allocator.shared_tokens - shared_before
                used += (allocator.used_slots - used_before) * left
                shared += more * left
                if more:
                    saved.append((step, more))
            elif due:
                grown += due
                held += len(due) * (total - start)
            else:
                continue
            if clock in last:
                internal += self._full([(seq, clock, total - start) for seq in growth.pop_full(clock)])
        if grown:
            allocator.grow_many(grown)
        return used + held * unit * allocator.slots_per_token, internal, 0, saved, 0, shared

    def _branch(self, drops: list[Drop], due: list[int], clock: int) -> None:
        """Replace some candidates by copies of others; these and all that are due write at this clock."""
        allocator, unit = self.allocator, self.growth.unit
        copied = allocator.copied_slots
        if len(drops) == 1 and not due and len(drops[0][2]) == 1:  # most often
            _, place, pairs = drops[0]
            gone, stays = pairs[0]
            group = self.search.groups[place]
            living = group.sequences
            tokens = living[0].base + clock
            fork = self._take_place(group, living[stays], living[gone], tokens)
            foreseen = tokens % unit  # slots copied
            self.forks.branch([fork], [([fork[1], fork[2]], tokens + 1)])
        else:
            foreseen = self._branch_several(drops, due, clock)
        if allocator.copied_slots - copied != foreseen:
            raise InvariantError(
                f"{allocator.copied_slots - copied} slots were copied where {foreseen} were foreseen"
            )

    def _branch_several(self, drops: list[Drop], due: list[int], clock: int) -> int:
        """Like `_branch`, in the order of the groups; returns how many slots must be copied."""
        groups, running, unit = self.search.groups, self.running, self.growth.unit
        forks: list[Fork] = []
        writers: dict[Group, Writers] = {}
        foreseen = 0
        for _, place, pairs in drops:
            group = groups[place]
            living = group.sequences
            tokens = living[0].base + clock
            foreseen += len(pairs) * (tokens % unit)
            if len(pairs) == 1:  # most often
                gone, stays = pairs[0]
                fork = self._take_place(group, living[stays], living[gone], tokens)
                forks.append(fork)
                writers[group] = [fork[1], fork[2]], tokens + 1
                continue
            living = living[:]
            forks += [self._take_place(group, living[stays], living[gone], tokens) for gone, stays in pairs]
            branched = {living[place] for pair in pairs for place in pair}
            writers[group] = [one.seq for one in group.sequences if one in branched], tokens + 1
        known: Group | None = None
        for seq in due:  # all candidates of a group together
            if running[seq].group is not known:
                known = group = running[seq].its_group
                writers[group] = [request.seq for request in group.sequences], running[seq].base + clock + 1
        order = sorted(writers, key=self.urgency) if len(writers) > 1 else writers
        self.forks.branch(forks, [writers[group] for group in order])
        return foreseen

    # -- branching ----------------------------------------------------------------------------

    def replace(self, group: Group, parent: Request, candidate: Request) -> None:
        """Turn a candidate into a copy of another one."""
        full = self._full_clock(candidate)
        if parent.seq not in self.unwritten:
            self._await_write(parent, full)
        tokens = parent.base + self.progress.clock
        if not self.forks.fork_over(*self._take_place(group, parent, candidate, tokens)):
            raise InvariantError(f"sequence {parent.seq} was refused a fork")
        self._await_write(candidate, full)
        if not self.forks.copies_on_write:  # copied already: each owns its last block
            self.settle(group)

    def _take_place(self, group: Group, parent: Request, candidate: Request, tokens: int) -> Fork:
        """Everything but the blocks: a candidate gets a new id, as a copy of a parent of `tokens` tokens."""
        running: dict[Id, Request] = self.running
        old: Id = candidate.seq
        seq: Id = self.memory.new_seq()
        del running[old]
        running[seq] = candidate
        self.growth.rename(old, seq, -candidate.base, candidate.finish_clock)  # blocks are filled by then
        candidate.seq = seq
        candidate.reached, candidate.sample = parent.reached, parent.sample
        sequences = group.sequences
        sequences.remove(candidate)
        sequences.append(candidate)
        if candidate.preemptions:
            sequences[0].preemptions += candidate.preemptions
            candidate.preemptions = 0
        return old, parent.seq, seq, tokens

    def _await_write(self, request: Request, full_clock: int) -> None:
        """A candidate shares its last block; if it will still grow, that stays planned."""
        self.unwritten[request.seq] = full_clock < request.finish_clock
        self.memory.set_internal(request, 0)
