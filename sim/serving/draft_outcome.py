"""Which drafts of a step are right, one sequence after the other, and how many there have been."""

from kvsim.sim.serving.acceptance import Acceptance
from kvsim.sim.serving.draft_batch import Drafted
from kvsim.sim.serving.draft_records import DraftRules, Taken
from kvsim.sim.serving.request import State
from kvsim.sim.serving.totals import DraftTotals


class Outcome:
    """Verifies drafts of sequences that are served one by one.

    Attributes
    ----------
    totals : DraftTotals
        What it has counted.
    """

    def __init__(
        self, progress: Drafted, rules: DraftRules, longest: int, acceptance: Acceptance, totals: DraftTotals
    ) -> None:
        self._progress, self._rules, self._longest = progress, rules, longest
        self._acceptance, self.totals = acceptance, totals

    def verify(self, taken: Taken, next_proposed: int) -> bool:
        """Verify a sequence's drafts, before the next are proposed; returns whether it has its last token."""
        seen, request, drafts = taken.seen, taken.request, taken.drafts
        if request.state is State.DECODE:
            missing = request.final_tokens - self._progress.stored(request)
        else:
            missing = request.output_tokens - request.generated
        if drafts or not self._acceptance.steady:
            proposed, accepted = self._acceptance.event(request, seen.events)
        else:
            proposed, accepted = self._rules.most, 0
        if accepted > drafts:
            accepted = drafts
        if accepted > seen.valid:
            accepted = seen.valid
        if taken.padded:
            accepted = 0
        elif drafts:
            self.totals.count(request.index, drafts, accepted)
        kept = accepted + 1
        taken.accepted, taken.returned = accepted, kept
        if kept > missing:
            kept = missing
        taken.kept = kept
        seen.events += 1
        seen.valid = proposed if proposed < next_proposed else next_proposed
        if self._rules.to_the_end:
            after = request.final_tokens + 1 - missing + kept
            seen.valid = max(min(seen.valid, self._longest - after), 0)
        return kept == missing
