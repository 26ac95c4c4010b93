"""Calibrated step times: the measured parts of a profile put together, and what was not measured.

    GPU     everything n tokens need besides attention + decode attention + prefill attention (step.py)
    starts  a graph's replay is added; kernels started from the host are a step's least time, and so is the
            host's own work with asynchronous scheduling, which is added without (starts.py)
    cut     contexts are divided before decode attention, once per step: separately for windowed layers
    drafts  verified with their sequences' tokens: the longer of reading contexts once and of computing
            with them for each token at prefill attention's rate
    step    GPU and starts, + copies within the GPU, + blocks from and to the host

Decode attention depends on the sum of the contexts, the longest context and the sum in whole tiles
(decode.py), which grow by fixed amounts per step. It is computed at multiples of 64 tokens of the mean
context and interpolated linearly in between, so a span costs little more than one step.

A part of a step that lies outside what was measured is *extrapolated*: by the form, with the ratio at the
edge. The time of these parts is summed (extrapolation.py), and every output reports it.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar, NamedTuple

from kvsim.sim.cost.calibrated.extrapolation import Extrapolation
from kvsim.sim.cost.calibrated.parts import Place, Priced
from kvsim.sim.cost.calibrated.starts import Starts
from kvsim.sim.cost.calibrated.step import StepParts
from kvsim.sim.cost.frontend import frontend_words
from kvsim.sim.cost.host import host_words
from kvsim.sim.cost.lent_parts import lent_words
from kvsim.sim.cost.older_experts import release_of
from kvsim.sim.cost.options import CalibratedOptions
from kvsim.sim.cost.profile_checks import check_profile
from kvsim.sim.cost.profile_files import REHEARSAL, Profile
from kvsim.sim.cost.step_cost import COMPILED, LONGEST_PS, CostModel, Spread, StepShape, add_ends
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import understood

STRETCH, FIRST_STRETCH = 64, 8
"""Steps from one computed attention time to the next: FIRST_STRETCH while the mean context is below STRETCH
tokens, where the time is not linear, as a tile takes the longer of its latency and its read."""


NOTHING = Priced(0.0)


class Decoding(NamedTuple):
    """The part of a decode-only step that depends only on the batch size."""

    beside_ps: int
    """everything but attention"""
    least_ps: int
    """least time of the whole step: the time to launch its kernels"""
    outside: tuple[Priced, ...]
    """parts other than attention that lie outside what was measured"""
    places: tuple[Place, ...]
    """where attention lies outside, apart from the contexts"""


class Calibrated(CostModel):
    """The step times of a deployment by its profile."""

    declares: ClassVar[type] = CalibratedOptions
    batches: ClassVar[str] = "each"
    drafts: ClassVar[bool] = True
    launches: ClassVar[bool] = True

    @classmethod
    def of(cls, deployment: Deployment, argument: str) -> CostModel:
        """The model for a deployment."""
        return super().of(deployment, argument) if argument else cls(deployment)

    def __init__(self, deployment: Deployment) -> None:
        profile = deployment.profile
        if profile is None:
            raise KvsimError(
                f"cost calibrated needs a measured profile of gpu {deployment.gpu.name!r}, and there is "
                "none: measure one with sim calibrate, or use --cost roofline"
            )
        with understood("profile"):
            check_profile(profile)
            self.source = source(profile, deployment)
            self._parts = parts = StepParts(deployment, profile["parts"])
        self._attention = attention = parts.attention
        kinds = (attention.decode is not None) + (attention.windowed is not None)
        self._starts = Starts(deployment, profile["launch"], kinds)
        tiled = attention.decode or attention.windowed
        self.context_tile = tiled.tile if tiled else 0
        self.flags = True
        self._limits = attention.context_limits()
        self._extrapolation = Extrapolation()
        self._decoding: dict[int, Decoding] = {}
        self._last: tuple[StepShape | None, int, list[Priced]] = None, 0, []  # each shape is priced twice
        self._verifying: dict[tuple[int, int], tuple[int, list[Priced]]] = {}  # by sequences and drafts
        self._last_line = (0, 0, 0, 0), 0, 0  # key, and its line

    # -- what a step takes --------------------------------------------------------------------

    def step_ps(self, shape: StepShape) -> int:
        """The sum above, in whole picoseconds; at least 1."""
        prompts, _, _, seqs, context, copied, moved_in, _, moved_out, _, spread, drafts, _ = shape
        duration = least = 0
        if prompts or drafts:
            duration, _ = self._beside_decode(shape)
            added, least = self._starts.mixed(prompts, seqs, drafts, shape.prefill_seqs + seqs)
            duration += added
        elif seqs:
            duration, least, _, _ = self._decoding.get(seqs) or self._only_decoding(seqs)
        beside = self._attention.beside_prompts_ps(seqs, context, spread) if prompts and seqs else None
        if beside is not None:
            duration += int(beside)
        elif seqs:
            since, start, more = self._line(seqs, context, spread)
            attention = start + more * since
            if drafts:
                attention = max(attention, int(self._attention.verifying_ps(seqs, drafts, context)))
            duration += attention
        if duration < least:
            duration = least
        if copied or moved_in or moved_out:
            duration += int(self._parts.copies(shape).ps)
        return duration or 1

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """The steps, one by one."""
        return self.durations_ps(decode_seqs, context_tokens, steps, None)

    def durations_ps(self, seqs: int, total: int, steps: int, spread: Spread | None) -> list[int]:
        """Like `span_ps`, for contexts that differ."""
        if not seqs:
            return [1] * steps
        found: list[int] = []
        while len(found) < steps:
            done = len(found)
            now = spread and spread.later(done, seqs)
            found += _rising(*self._stretch(seqs, total + done * seqs, steps - done, now))
        return found

    def span_ends(
        self, decode_seqs: int, context_tokens: int, steps: int, limit_ps: int, spread: Spread | None = None
    ) -> list[int]:
        """As in the base; a later step may be shorter than the first, since interpolated ratios may fall."""
        if COMPILED and limit_ps < LONGEST_PS:
            return self._ends_one_by_one(decode_seqs, context_tokens, steps, limit_ps, spread)
        stretch = _rising(*self._stretch(decode_seqs, context_tokens, steps, spread))
        done = len(stretch)
        most = limit_ps // min(stretch[0], stretch[-1]) + 1
        ends = list(accumulate(stretch if done <= most else stretch[:most]))
        while done < steps and ends[-1] < limit_ps:
            context, later = context_tokens + done * decode_seqs, spread and spread.later(done, decode_seqs)
            stretch, now = _rising(*self._stretch(decode_seqs, context, steps - done, later)), ends.pop()
            done += len(stretch)
            most = (limit_ps - now) // min(stretch[0], stretch[-1]) + 1
            ends += accumulate(stretch[:most], initial=now)
        if ends[-1] > limit_ps:
            del ends[bisect_left(ends, limit_ps) + 1 :]
        return ends

    def _ends_one_by_one(
        self, seqs: int, total: int, steps: int, limit_ps: int, spread: Spread | None
    ) -> list[int]:
        """The same as `span_ends`, for the compiled build."""
        ends: list[int] = []
        done = 0
        while not done or (done < steps and ends[-1] < limit_ps):
            later = spread if spread is None or not done else spread.later(done, seqs)
            first, more, least, count = self._stretch(seqs, total + done * seqs, steps - done, later)
            add_ends(ends, first, more, least, steps=count, limit_ps=limit_ps)
            done += count
        return ends

    def _stretch(self, seqs: int, total: int, steps: int, spread: Spread | None) -> tuple[int, int, int, int]:
        """A span up to the end of its stretch: first duration, increase per step, least, number of steps."""
        beside, least, _, _ = self._decoding.get(seqs) or self._only_decoding(seqs)
        since, start, more = self._line(seqs, total, spread)
        left = (STRETCH if total >= STRETCH * seqs else FIRST_STRETCH) - since
        if steps > left:
            steps = left
        return beside + start + more * since, more, least, steps

    def _line(self, seqs: int, total: int, spread: Spread | None) -> tuple[int, int, int]:
        """Decode attention near a step: steps since its stretch began, ps at its start, ps more per step."""
        stretch = STRETCH if total >= STRETCH * seqs else FIRST_STRETCH
        since = total // seqs % stretch
        total -= since * seqs
        longest = rounded = -1
        if spread is not None:
            longest, rounded = spread
            longest, rounded = longest - since, rounded - since * seqs
        where = seqs, total, longest, rounded
        known, start, more = self._last_line
        if known != where:
            before = None if spread is None else spread.later(-since, seqs)
            first, last = self._attention.decode_ends_ps(seqs, total, before, stretch)
            start, more = int(first), int((last - first) / stretch)
            self._last_line = where, start, more
        return since, start, more

    def _beside_decode(self, shape: StepShape) -> tuple[int, list[Priced]]:
        """A step with prompts or drafts, without decode attention: ps, and what lies outside."""
        if not (shape.prefill_tokens or shape.prefill_seqs):
            name = shape.decode_seqs, shape.draft_tokens
            known = self._verifying.get(name)
            if known is None:
                known = self._verifying[name] = self._priced_beside(shape)
            return known
        last, beside, outside = self._last
        if last is not shape:
            beside, outside = self._priced_beside(shape)
            self._last = shape, beside, outside
        return beside, outside

    def _priced_beside(self, shape: StepShape) -> tuple[int, list[Priced]]:
        parts, (tokens, pairs, sequences, seqs, *_) = self._parts, shape
        drafts = shape.draft_tokens
        prompts = self._attention.prefill(sequences, tokens, pairs) if tokens else NOTHING
        products, heads = parts.tokens(tokens + seqs + drafts), parts.rows(sequences + seqs + drafts)
        base, each = self._starts.added_ps
        beside = int(products.ps + heads.ps + prompts.ps + base + each * (sequences + seqs))
        beside += int(self._starts.cut_ps) if seqs else 0
        if not (products.outside_ps or heads.outside_ps or prompts.outside_ps):
            return beside, []
        return beside, [each for each in (products, heads, prompts) if each.outside_ps]

    def _only_decoding(self, seqs: int) -> Decoding:
        known = self._decoding.get(seqs)
        if known is None:
            some = self._parts.tokens(seqs), self._parts.rows(seqs)
            started, least = self._starts.decoding(seqs)
            base, each = self._starts.added_ps
            beside = int(some[0].ps + some[1].ps + started + (base + each * seqs))
            outside = tuple(each for each in some if each.outside_ps)
            places = tuple(self._attention.decode_outside(seqs))
            known = self._decoding[seqs] = Decoding(max(beside, 1), least, outside, places)
        return known

    # -- what lies outside --------------------------------------------------------------------

    @property
    def extrapolated_share(self) -> float:
        """Share of step time spent in parts that lie outside what was measured.

        A launch lies outside if it does on any axis of its part. All its time then counts, but not that of
        other launches in the step. The time of decode attention is what a step takes beyond everything else.
        """
        return self._extrapolation.share

    def outside(self) -> list[str]:
        """Part, axis, the values that occurred, and the values that were measured."""
        books, parts = self._extrapolation, self._parts
        return books.words({(part, axis): parts.limits(part)[axis] for part, axis in books.axes})

    def carried_out(self, shape: StepShape, duration_ps: int) -> None:
        """Add the time of a step, and of its parts that lie outside."""
        seqs, books = shape.decode_seqs, self._extrapolation
        books.time_ps += duration_ps
        if shape.copied_tokens or shape.swapped_in_blocks or shape.swapped_out_blocks:
            copies = self._parts.copies(shape)
            duration_ps -= int(copies.ps)
            books.note(copies)
        if shape.prefill_tokens or shape.draft_tokens:
            beside, outside = self._beside_decode(shape)
            for each in outside:
                books.note(each)
            if seqs:
                places = self._only_decoding(seqs).places
                self._note_attention(places, seqs, (shape.context_tokens,), beside, (duration_ps,))
        elif seqs:
            self._note_decoding(seqs, shape.context_tokens, (duration_ps,))

    def steps_carried_out(
        self, shape: StepShape, contexts: Sequence[int], durations_ps: Sequence[int]
    ) -> None:
        """Add the time of steps without prompts."""
        if not shape.draft_tokens:
            super().steps_carried_out(shape, contexts, durations_ps)
            return
        books, ends = self._extrapolation, list(accumulate(durations_ps))
        books.time_ps += ends[-1]
        beside, outside = self._beside_decode(shape)
        for each in outside:
            books.note(each, len(ends))
        places = self._only_decoding(shape.decode_seqs).places
        self._note_attention(places, shape.decode_seqs, contexts, beside, ends)

    def span_carried_out(self, decode_seqs: int, context_tokens: int, ends: Sequence[int]) -> None:
        """Add the time of the steps of a span."""
        self._extrapolation.time_ps += ends[-1]
        self._note_decoding(decode_seqs, context_tokens, ends)

    def _note_decoding(self, seqs: int, total: int, ends: Sequence[int]) -> None:
        beside, _, outside, places = self._decoding.get(seqs) or self._only_decoding(seqs)
        for each in outside:
            self._extrapolation.note(each, len(ends))
        contexts = range(total, total + len(ends) * seqs, seqs)
        self._note_attention(places, seqs, contexts, beside, ends)

    def _note_attention(
        self, places: Sequence[Place], seqs: int, contexts: Sequence[int], beside_ps: int, ends: Sequence[int]
    ) -> None:
        """For steps that end at `ends`: add the time beyond `beside_ps`, if attention lies outside."""
        books = self._extrapolation
        if places:
            duration = ends[-1] - len(ends) * beside_ps
            books.outside_ps += duration
            for place in places:
                books.add(place, duration)
        if self._limits is None:
            return
        low, high = self._limits
        if low * seqs <= contexts[0] and contexts[-1] <= high * seqs:
            return
        start = 0
        for context, end in zip(contexts, ends, strict=True):
            mean, duration = context / seqs, end - start - beside_ps
            if not low <= mean <= high:
                books.add(("decode", "context_tokens", mean), duration)
                books.outside_ps += 0 if places else duration
            start = end


def _rising(first: int, more: int, least: int, steps: int) -> Sequence[int]:
    """`steps` durations from `first`, each `more` longer than the last, but at least `least`."""
    last = first + more * (steps - 1)
    if first < least or last < least:
        return [max(first + more * step, least) for step in range(steps)]
    return range(first, last + (1 if more > 0 else -1), more) if more else [first] * steps


def source(profile: Profile, deployment: Deployment) -> str:
    """Which profile, its date and versions, its origin, and whether it is a rehearsal."""
    tp, measured, error = deployment.tensor_parallel_size, profile["measured"], profile["composed_error"]
    what = f"{deployment.model.name} on {f'{tp} x ' if tp > 1 else ''}{deployment.gpu.name}"
    date, host = str(measured["date"])[:10], [host_words(deployment), frontend_words(deployment)]
    if profile["kind"] == "elsewhere":
        engine = str(profile["engine"]["decode"]).partition(":")[0]
        older = release_of(profile)
        experts = f", experts as in {older}," if older else ""
        tabled = f"kernels of {engine}{experts} as tabled by {profile['source']}"
        said = ", ".join(filter(None, [tabled, date, *host]))
        return f"measured elsewhere: {what}; profile {profile['name']}, {said}"
    facts = [f"{key} {measured[key]}" for key in ("driver", "torch", "triton") if measured.get(key)]
    if error is not None:
        facts.append(f"error {100 * error:.1f} % on composed steps")
    facts += [f"faulty: {each}" for each in profile.get("faults", ())]
    if lent := lent_words(profile["parts"]):
        older = release_of(profile)
        facts.append(lent + (f", experts as in {older}" if older else ""))
    kind = REHEARSAL if profile["kind"] == "rehearsal" else "measured"
    said = ", ".join(filter(None, [kind, date, *facts, *host]))
    return f"calibrated: {what}; profile {profile['name']}, {said}"
