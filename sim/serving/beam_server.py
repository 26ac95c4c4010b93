"""A server that searches by beams: after each step some candidates are dropped, and others go on twice.

    step k     candidates  a b c d        drawn: c is dropped, a goes on twice
    step k+1               a b d a'       a' shares all blocks of a; whoever writes first copies the last one

All candidates of a search have equally many tokens and the same end. So a candidate that is dropped makes way
for the new one in everything that depends on these: it changes its blocks and its id, and nothing else.
"""

from collections.abc import Sequence

from mypy_extensions import mypyc_attr

from kvsim.allocators.base import InvariantError
from kvsim.sim.serving.group_server import GroupServer
from kvsim.sim.serving.request import Group, Request, State


@mypyc_attr(allow_interpreted_subclasses=True)
class BeamServer(GroupServer):
    """What beam search needs beyond a GroupServer."""

    @property
    def beams(self) -> list[Group]:
        """The groups that have their candidates."""
        return [group for group in self.groups if len(group.sequences) > 1]

    def searches(self, group: Group) -> bool:
        """Whether a group has decoded a token yet, so that its candidates may differ."""
        first = group.sequences[0]
        return self.progress.stored(first) > first.prompt_tokens

    # -- branching ----------------------------------------------------------------------------

    def branch(self, group: Group, parents: Sequence[int]) -> None:
        """Replace the candidates: the i-th follows the old candidate `parents[i]`."""
        living, left = group.sequences[:], list(parents)
        dropped = []
        for place, candidate in enumerate(living):
            if place in left:
                left.remove(place)
            else:
                dropped.append(candidate)
        twice = [living[place] for place in sorted(left)]
        self.step.changed = True
        if self._alike(living):
            for parent, candidate in zip(twice, dropped, strict=True):
                self._replace(group, parent, candidate)
            return
        for parent in twice:
            self._branch_off(group, parent)
        for candidate in dropped:
            self._abandon(group, candidate)

    def _alike(self, candidates: list[Request]) -> bool:
        """Whether a candidate may take the place of another one, and nobody wants to hear of it."""
        if self.events or self.allocator.caches or not self.progress.linear:
            return False
        return all([one.open_stream is None and one.seq not in self._unwritten for one in candidates])

    def _replace(self, group: Group, parent: Request, candidate: Request) -> None:
        """A candidate goes on as a copy of another one."""
        allocator, progress, old, seq = self.allocator, self.progress, candidate.seq, self._next_seq
        self._next_seq += 1
        full = self._full_clock(candidate)
        if parent.seq not in self._unwritten:
            self._await_write(parent, full)
        if not allocator.fork_over(old, parent.seq, seq, progress.stored(parent)):
            raise InvariantError(f"sequence {parent.seq} was refused a fork")
        del self.running[old]
        self.running[seq] = candidate
        self._growth.rename(old, seq, full, candidate.finish_clock)
        progress.rename(candidate, seq)
        self._await_write(candidate, full)
        candidate.reached, candidate.sample = parent.reached, parent.sample
        group.sequences.remove(candidate)
        group.sequences.append(candidate)
        group.sequences[0].preemptions += candidate.preemptions
        candidate.preemptions = 0

    def _await_write(self, request: Request, full_clock: int) -> None:
        """A candidate shares its last block; if it is to grow at all, that stays planned as it is."""
        self._unwritten[request.seq] = full_clock < request.finish_clock
        self._set_internal(request, 0)

    def _branch_off(self, group: Group, parent: Request) -> None:
        if parent.seq not in self._unwritten:
            self._growth.remove(parent.seq, self._full_clock(parent), parent.finish_clock)
            self._set_internal(parent, 0)
            self._unwritten[parent.seq] = False
        child = parent.as_sample(parent.sample, parent.output_tokens)
        self._fork(parent, child)
        child.generated = self.progress.generated(parent)
        child.last_token_ps = self.now_ps
        child.move(State.PREFILL)
        child.move(State.DECODE)
        self.progress.join(child, self.now_ps)
        self._unwritten[child.seq] = False
        group.sequences.append(child)

    def _abandon(self, group: Group, candidate: Request) -> None:
        self._leave_decode(candidate)
        candidate.move(State.FINISHED)
        group.sequences.remove(candidate)
        group.sequences[0].preemptions += candidate.preemptions
        self.release(candidate)
        self._settle(group)
        self.step.changed = True
