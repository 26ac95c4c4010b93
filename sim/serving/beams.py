"""Beam search on a server, as in vLLM V0: drops candidates after a step and duplicates others instead."""

from collections.abc import Sequence

from kvsim.sim.serving.beam import Pair
from kvsim.sim.serving.beam_batch import BeamBatch
from kvsim.sim.serving.groups import Groups
from kvsim.sim.serving.request import Group, Request, State


class Beams:
    """The beam searches of one server.

    Parameters
    ----------
    groups : Groups
        The groups of the server.
    batch : BeamBatch
        Its batch.
    """

    def __init__(self, groups: Groups, batch: BeamBatch) -> None:
        self.groups, self.batch = groups, batch
        self.server, self.search = groups.server, batch.search

    def look_ahead(self) -> None:
        """A step is decided, and repeats until a candidate may be dropped; observers see every step."""
        step, progress = self.server.step, self.server.progress
        groups = [group for group in self.groups.running if len(group.sequences) > 1]
        self.search.begin(groups)
        if groups and not step.changed:
            step.of_validity().steps = self.search.look_ahead(progress.next_finish - progress.clock)
            if self.server.events:
                step.changed = True

    def drop_candidates(self) -> None:
        """Steps are over: draw which candidates survived the last one."""
        for group, pairs in self.search.draw(self.server.progress.clock):
            self.branch(group, pairs)

    def branch(self, group: Group, pairs: Sequence[Pair]) -> None:
        """Drop the first candidate of each pair of places, and duplicate the second."""
        living = group.sequences[:]
        if self.batch.alike:
            for dropped, parent in pairs:
                self.batch.replace(group, living[parent], living[dropped])
            return
        for _, parent in pairs:
            self._branch_off(group, living[parent])
        for dropped, _ in pairs:
            self._abandon(group, living[dropped])

    def _branch_off(self, group: Group, parent: Request) -> None:
        if parent.seq not in self.batch.unwritten:
            self.batch.share_again(parent)
        child = parent.as_sample(parent.sample, parent.output_tokens)
        self.groups.fork(parent, child)
        child.generated = self.server.progress.generated(parent)
        child.last_token_ps = self.server.now_ps
        child.move(State.PREFILL)
        child.move(State.DECODE)
        self.batch.join_shared(child, self.server.now_ps)
        group.sequences.append(child)

    def _abandon(self, group: Group, candidate: Request) -> None:
        self.batch.leave(candidate)
        candidate.move(State.FINISHED)
        group.sequences.remove(candidate)
        group.sequences[0].preemptions += candidate.preemptions
        self.server.release(candidate)
        self.batch.settle(group)
