"""Counts the spans of a run: sums over time, gaps between tokens, and peaks.

Sums are integrals over time in slot-picoseconds (or requests x picoseconds): exact integers. They are kept
separately for steps at whose start a request waited (saturated) and for all other steps. Spans are kept and
counted many at a time, or one by one if this module is compiled (counting.py).
"""

from typing import Final

from kvsim.sim.record.counting import COMPILED, Counting
from kvsim.sim.record.histogram import Histogram
from kvsim.sim.record.limits import LIMITS
from kvsim.sim.record.span import HELD_BY, Columns, Integrals, Kept, Rest, Span, Start, unlike_tokens

SPANS_AT_ONCE: Final = 1024


class Tally:
    """Sums over the steps of one replica.

    Parameters
    ----------
    slots_per_token : int
        Slots per token.

    Attributes
    ----------
    saturated, unsaturated : Integrals
        Sums over steps at whose start a request waited, and over all others.
    held_ps : dict of int
        How long each limit (limits.py) held the queue back.
    token_gaps : Histogram
        Times between two tokens of a sequence.
    peak_used_slots, max_running : int
        The most slots that held a token, and the most running requests.
    first_tokens : int
        Tokens without a previous one.
    """

    def __init__(self, slots_per_token: int) -> None:
        self.slots_per_token = slots_per_token
        self.saturated, self.unsaturated = Integrals(), Integrals()
        self.held_ps = dict.fromkeys(LIMITS, 0)
        self.token_gaps = Histogram()
        self.peak_used_slots = self.max_running = self.first_tokens = 0
        self._spans: list[Span] = []  # not counted yet
        self._counting = Counting(slots_per_token) if COMPILED else None
        self._late_gaps: list[tuple[int, int]] = []
        self._together = 0  # tokens that came together with another of their sequence
        self._uncounted = self._spans, self._late_gaps, 0  # and the tokens counted before those

    def idle(self, duration_ps: int, held_by: str, rest: Rest, kept: Kept = (0, 0, 0, 0)) -> None:
        """Add time in which nothing was computed; `held_by` and `rest` as in `Start`."""
        sums = self.saturated if held_by else self.unsaturated
        if held_by:
            self.held_ps[held_by] += duration_ps
        sums.add_idle(duration_ps, rest, kept)

    def add(self, span: Span) -> None:
        """Keep steps that were carried out, to count them with others."""
        if self._counting is not None and self._counting.add(span):
            if self._counting.spans == SPANS_AT_ONCE:
                self.flush()
            return
        spans = self._spans
        spans.append(span)
        if len(spans) == SPANS_AT_ONCE:
            self.flush()

    def add_unlike(self, ends: list[int], start: Start, contexts: list[int]) -> None:
        """Count what a span holds beyond `add`, with `contexts` tokens per step that grow unevenly."""
        sums = self.saturated if start[HELD_BY] else self.unsaturated
        sums.token += unlike_tokens(ends, start, contexts)
        held = start[2] + contexts[-1] - contexts[0]
        if held > self.peak_used_slots:
            self.peak_used_slots = held

    def late(self, gap_ps: int, count: int) -> None:
        """Add gaps between two tokens that do not equal the duration of one step."""
        if self._counting is not None and self._counting.late(gap_ps, count):
            return
        self._late_gaps.append((gap_ps, count))

    def together(self, count: int) -> None:
        """Add tokens that came at the same time as another one of their sequence."""
        self._together += count

    def flush(self) -> None:
        """Count the spans and late tokens so far; a few late tokens wait for the last spans."""
        spans = self._spans[:]
        self._uncounted = spans, *self._uncounted[1:]
        self._spans.clear()
        counts_late = len(spans) < SPANS_AT_ONCE or len(self._late_gaps) >= SPANS_AT_ONCE
        if self._counting is not None:
            self._take_counted(self._counting)
        waited = [span for span in spans if span[1][HELD_BY]]
        others = spans if not waited else [span for span in spans if not span[1][HELD_BY]]
        self._count(waited, self.saturated)
        self._count(others, self.unsaturated)
        if self._late_gaps and counts_late:
            gaps, counts = zip(*self._late_gaps, strict=True)
            self.token_gaps.add_spans([[gap] for gap in gaps], counts)
            self._late_gaps = []
        counted = self.token_gaps.count - (0 if self._counting is None else int(self._counting.tokens))
        self._uncounted = self._spans, self._late_gaps, counted

    def tokens(self) -> int:
        """Number of generated tokens, including the last step; may be called from another thread."""
        spans, late, tokens = self._uncounted
        tokens += sum([len(ends) * start[0] for ends, start, _ in spans[:]])
        tokens += sum([count for _, count in late[:]]) + self._together
        return self.first_tokens + tokens + (0 if self._counting is None else int(self._counting.tokens))

    def _count(self, spans: list[Span], sums: Integrals) -> None:
        """Count spans that all go into the same sums."""
        if not spans:
            return
        columns = Columns(spans, self.slots_per_token)
        if columns.held_by[0]:
            for held_by, duration_ps in zip(columns.held_by, columns.totals_ps.tolist(), strict=True):
                self.held_ps[held_by] += duration_ps
        self.token_gaps.add_ends(columns.ends_ps, columns.steps, columns.starts[0])
        self.max_running = max(self.max_running, int(columns.starts[1].max()))
        self.peak_used_slots = columns.peak_slots(self.peak_used_slots)
        sums.add_spans(columns)

    def _take_counted(self, counting: Counting) -> None:
        """The same for spans already counted one by one, compiled."""
        counting.give(self.saturated, self.unsaturated, self.held_ps, self.token_gaps)
        self.max_running = max(self.max_running, int(counting.max_running))
        self.peak_used_slots = max(self.peak_used_slots, int(counting.peak_slots))

    def close(self) -> None:
        """The run is over: count everything that is left."""
        if self._together:
            self.late(0, self._together)
            self._together = 0
        self.flush()
