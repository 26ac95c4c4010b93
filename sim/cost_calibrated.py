"""Calibrated step times: the measured parts of a profile put together, and what of them was not measured.

    GPU     all that n tokens need beside attention + decode attention + prefill attention (sim/step_parts.py)
    graph   replay + GPU, for steps that only decode and have at most 512 sequences: what engines capture
    eager   max(GPU, kernels * host time of a launch), for all others
    step    graph or eager, + copies within the GPU, + blocks from and to the host

Decode attention follows the sum of the contexts, the longest of them and their sum in whole tiles
(sim/decode_part.py), so it is no straight line: a span costs a little for each of its steps.

A step of which any part lies outside what was measured is *extrapolated*: the form still holds, the ratio is
that of the edge. Its time is counted (sim/extrapolation.py) and every output says how much it was.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from sim.config import Scenario
from sim.cost import CostModel, Spread, StepShape
from sim.errors import KvsimError
from sim.extrapolation import Extrapolation
from sim.profile_files import REHEARSAL, Profile
from sim.profile_parts import Place
from sim.step_parts import StepParts
from sim.workload import PS_PER_S

GRAPH_SEQS = 512
"""Largest batch that vLLM captures in a CUDA graph unless told otherwise."""
KERNELS_PER_LAYER = 9
"""Two norms, four products, rotary, KV write, activation; without attention and all-reduces."""
KERNELS_PER_STEP = 3
"""Norm, LM head, sampling."""


class Calibrated(CostModel):
    """The step times of one scenario by its profile."""

    flags = True

    def __init__(self, scenario: Scenario) -> None:
        profile = scenario.profile
        if profile is None:
            raise KvsimError(
                f"cost calibrated needs a measured profile of gpu {scenario.gpu.name!r}, and there is none: "
                "measure one with sim calibrate, or use --cost roofline"
            )
        self.source = source(profile, scenario)
        self._parts = parts = StepParts(scenario, profile["parts"])
        self._layers, self._tp = scenario.model.layers, scenario.tensor_parallel_size
        self._eager_ps: float = profile["launch"]["eager_s"] * PS_PER_S
        self._replay_ps: float = profile["launch"]["replay_s"] * PS_PER_S
        self._walks = parts.decode if parts.windowed is None else None  # attention that can walk a span
        tiled = parts.decode or parts.windowed
        self.context_tile = tiled.tile if tiled else 0
        self._limits = parts.context_limits()
        self._extrapolation = Extrapolation()
        self._decoding: dict[int, tuple[float, float]] = {}
        self._decode_places: dict[int, tuple[Place, ...]] = {}

    # -- what a step takes --------------------------------------------------------------------

    def step_ps(self, shape: StepShape) -> int:
        """The sum above, cut to whole picoseconds."""
        parts = self._parts
        moves = shape.copied_tokens or shape.swapped_in_blocks or shape.swapped_out_blocks
        beside = parts.copies(shape)[0] if moves else 0.0
        if not (shape.prefill_tokens or shape.decode_seqs):
            return max(int(beside), 1)
        constant, least = self._launched(shape)
        if shape.prefill_tokens:
            constant += parts.prefill_ps(shape)
        if beside:
            constant, least = constant + beside, least + beside
        return int(max(constant + parts.decode_ps(shape), least))

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """The steps one by one, what stays the same taken out of the loop."""
        return self.durations_ps(decode_seqs, context_tokens, steps, None)

    def durations_ps(self, seqs: int, total: int, steps: int, spread: Spread | None) -> list[int]:
        """`span_ps` of contexts that differ."""
        if not seqs:
            return [1] * steps
        constant, least = self._launched_decoding(seqs)
        if self._walks and spread and least <= constant:
            return self._walks.durations(constant, seqs, total, steps, spread)
        times = (self._parts.decode_ps(shape) for shape in step_shapes(seqs, total, steps, spread))
        return [int(max(constant + each, least)) for each in times]

    def span_ends(
        self, decode_seqs: int, context_tokens: int, steps: int, limit_ps: int, spread: Spread | None = None
    ) -> list[int]:
        """As every model, but a later step may be shorter than the first: interpolated ratios may fall."""
        constant, least = self._launched_decoding(decode_seqs)
        if self._walks:
            constant += self._walks.least_ps(decode_seqs, context_tokens)
        most = min(steps, limit_ps // max(int(max(constant, least)), 1) + 1)
        ends = list(accumulate(self.durations_ps(decode_seqs, context_tokens, most, spread)))
        if ends[-1] > limit_ps:
            del ends[bisect_left(ends, limit_ps) + 1 :]
        return ends

    def _launched_decoding(self, seqs: int) -> tuple[float, float]:
        """The same for a step that only decodes."""
        known = self._decoding.get(seqs)
        if known is None:
            known = self._decoding[seqs] = self._launched(StepShape(decode_seqs=seqs))
        return known

    def _launched(self, shape: StepShape) -> tuple[float, float]:
        """All but attention and copies, and what the whole takes at least: to launch its kernels."""
        decoding, tokens = shape.decode_seqs, shape.prefill_tokens
        gpu_ps = self._parts.tokens(tokens + decoding)[0] + self._parts.rows(shape.prefill_seqs + decoding)[0]
        if not tokens and decoding <= GRAPH_SEQS:
            return self._replay_ps + gpu_ps, 0.0
        kernels = KERNELS_PER_LAYER + 2 * (decoding > 0) + (tokens > 0) + 2 * (self._tp > 1)
        return gpu_ps, (self._layers * kernels + KERNELS_PER_STEP) * self._eager_ps

    # -- what lies outside --------------------------------------------------------------------

    @property
    def extrapolated_share(self) -> float:
        """Share of the time in steps of which any part lies outside what was measured."""
        return self._extrapolation.share

    def outside(self) -> list[str]:
        """Part, axis, the values that occurred and those that were measured."""
        books, parts = self._extrapolation, self._parts
        return books.words({(part, axis): parts.limits(part)[axis] for part, axis in books.axes})

    def carried_out(self, shape: StepShape, duration_ps: int) -> None:
        """Add up the time of a step, and that of those of which something lies outside."""
        parts, seqs = self._parts, shape.decode_seqs
        places = self._decoding_places(seqs) if seqs else ()
        if shape.prefill_tokens:
            n, m = shape.prefill_tokens + seqs, shape.prefill_seqs + seqs
            places = (
                *((words, "", 0.0) for words in parts.never_measured),
                *(*parts.tokens(n)[1], *parts.rows(m)[1]),
                *(*parts.decode_outside(seqs), *parts.prefill_outside(shape)),
            )
        if shape.copied_tokens or shape.swapped_in_blocks or shape.swapped_out_blocks:
            places += parts.copies(shape)[1]
        self._add(places, seqs, shape.context_tokens, (duration_ps,))

    def span_carried_out(self, decode_seqs: int, context_tokens: int, ends: Sequence[int]) -> None:
        """The same for the steps of a span."""
        self._add(self._decoding_places(decode_seqs), decode_seqs, context_tokens, ends)

    def _decoding_places(self, seqs: int) -> tuple[Place, ...]:
        """Where a step that only decodes lies outside, whatever its contexts."""
        found = self._decode_places.get(seqs)
        if found is None:
            parts = self._parts
            found = self._decode_places[seqs] = (
                *((words, "", 0.0) for words in parts.never_measured),
                *(*parts.tokens(seqs)[1], *parts.rows(seqs)[1], *parts.decode_outside(seqs)),
            )
        return found

    def _add(self, places: Sequence[Place], seqs: int, total: int, ends: Sequence[int]) -> None:
        books, duration = self._extrapolation, ends[-1]
        books.time_ps += duration
        if places:
            books.outside_ps += duration
            books.add(places, duration)
        if not (seqs and self._limits):
            return
        low, high = self._limits
        if low * seqs <= total and total + (len(ends) - 1) * seqs <= high * seqs:
            return
        start = 0
        for step, end in enumerate(ends):
            mean = (total + step * seqs) / seqs
            if not low <= mean <= high:
                books.add([("decode", "context_tokens", mean)], end - start)
                books.outside_ps += 0 if places else end - start
            start = end


def source(profile: Profile, scenario: Scenario) -> str:
    """Which profile, of when and by which versions; that it is a rehearsal where it is one."""
    tp, measured, error = scenario.tensor_parallel_size, profile["measured"], profile["composed_error"]
    facts = [f"{key} {measured[key]}" for key in ("driver", "torch", "triton") if measured.get(key)]
    if error is not None:
        facts.append(f"error {100 * error:.1f} % on composed steps")
    kind = REHEARSAL if profile["kind"] == "rehearsal" else "measured"
    return (
        f"calibrated: {scenario.model.name} on {f'{tp} x ' if tp > 1 else ''}{scenario.gpu.name}; "
        f"profile {profile['name']}, {kind}, {str(measured['date'])[:10]}, {', '.join(facts)}"
    )


def step_shapes(seqs: int, total: int, steps: int, spread: Spread | None) -> Iterator[StepShape]:
    """The steps of a span one by one."""
    longest, rounded, growth = spread or (0, 0, (0,))
    for step in range(steps):
        yield StepShape(
            decode_seqs=seqs,
            context_tokens=total + step * seqs,
            longest_context=longest and longest + step,
            rounded_context=rounded,
        )
        rounded += growth[step % len(growth)]
