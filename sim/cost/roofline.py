"""Roofline: the analytic step time, from the datasheet and the geometry, with stated efficiencies.

It is linear in the contexts, with an integer slope, so the durations of a whole span are a `range`, computed
in O(1).
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar, Final

from mypy_extensions import i64, mypyc_attr

from kvsim.sim.cost.collective import all_reduce_s, group_of
from kvsim.sim.cost.contexts import Contexts
from kvsim.sim.cost.host import Host, host_of
from kvsim.sim.cost.options import RooflineOptions
from kvsim.sim.cost.step_cost import (
    COMPILED,
    LONGEST_PS,
    CostModel,
    Spread,
    StepShape,
    add_ends,
    ends_until,
)
from kvsim.sim.cost.weights import Weights
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.models.catalog import gpu_named, gpu_names
from kvsim.sim.models.spec import GpuSpec, ModelSpec
from kvsim.sim.option import taken
from kvsim.sim.workload import PS_PER_S

KERNELS_PER_LAYER = 10
"""Norm, QKV, rotary, KV write, attention, out, norm, up, activation, down: fused as in vLLM."""

PREFILL_ATTENTION_EFFICIENCY = 0.55
"""Share of the peak that prefill attention reaches: 0.53 (median) in public H100 tables from 4k tokens on."""

FEW: Final = 12
"""Up to this many steps a loop is faster than iterators, which are slow to start."""

SEQS_BITS: Final = 32
"""Copied slots and decoding sequences in one integer: copied << SEQS_BITS | sequences."""

TRANSFER_LATENCY_S = 5e-6
"""Time to start a copy between GPU and host (cudaMemcpyAsync)."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Roofline(CostModel):
    """Analytic time of a step on `tp` GPUs that share every layer.

    With B = bandwidth * bandwidth_efficiency (bytes/s), F = peak * matmul_efficiency (flop/s), n = prefill
    tokens + decoding sequences, m = prefilling + decoding sequences, all per GPU:

        overhead   layers * (10 kernels * kernel_overhead + attention_latency)
        layers     max(weight bytes / tp / B, 2 * active parameters * n / tp / F); with E experts per layer, k
                   per token, E * (1 - (1 - k / E)^n) are read; F is that of the weights' precision
        LM head    the same with vocab * hidden parameters and m instead of n
        prefill    4 * layers * heads / tp * head_dim * pairs / (0.55 * peak)
        traffic    n * (layers * dtype * (12 * hidden + 3 * intermediate / tp) + KV bytes) / B
                   (norms, residual, rotary, activation; the KV write)
        decode     contexts * max(KV bytes per token / B, 4 * layers * heads / tp * head_dim / F);
                   windowed layers: min(contexts, window * decoding sequences) instead of contexts
        drafts     count in n and m; contexts are read once, whatever is verified, and computed with per
                   token: (1 + drafts / decoding) times the operations above
        states     recurrent layers: 2 * m * state bytes / B, read and written once per step, whatever the
                   contexts; and per prompt token the larger of the bytes and the operations of a scan in
                   chunks (sim/models/kv_layers.py), at B and at 0.55 * peak
        copies     2 * copied tokens * KV bytes per token / B
        swaps      2 * layers * swapped blocks * 5 us + swapped slots * KV bytes / PCIe
                   (one transfer for the keys and one for the values of each block in each layer)
        all-reduce tp > 1: 2 * layers * (5 us + 2 * (tp - 1) / tp * n * hidden * dtype / (0.65 * link)), a
                   ring; over PCIe (6 us * tp / 2, 0.55 * 2 / tp of it) if the GPU has no link, and through
                   the host without peer access; between nodes over the network (sim/cost/collective.py)
        ranks      of attention (data parallel): experts / ranks read, chosen by the tokens of all ranks; and
                   the equivalent of an all-reduce of these tokens in every layer
        host       if asked for: base + (prompts + m) * per sequence, added, or as the least time of a step
                   (sim/cost/host.py)

    The terms add up: no overlap. MLA: a prompt's keys and values are expanded, 2 * heads * (2 * head_dim +
    rope) per layer and pair; decoding works on the latent, 2 * heads * (2 * latent - rope), which every GPU
    reads whole.
    Prompts count all pairs, windows or not. Ignored: the CPU side (scheduling, sampling), skew between
    contexts, many short contexts (a round of programs takes 3.5 us), tile rounding, pipeline bubbles.
    """

    declares: ClassVar[type] = RooflineOptions
    batches: ClassVar[str] = "each"
    drafts: ClassVar[bool] = True

    @classmethod
    def of(cls, deployment: Deployment, argument: str) -> CostModel:
        """The model for a deployment."""
        if argument:
            return super().of(deployment, argument)
        return cls(
            deployment.served_model,
            deployment.served_gpu,
            deployment.tensor_parallel_size,
            ranks=deployment.data_parallel_size,
            host=host_of(deployment),
            expert_skew=taken(RooflineOptions, deployment.options).expert_skew,
        )

    def __init__(
        self,
        model: ModelSpec,
        gpu: GpuSpec,
        tensor_parallel_size: int = 1,
        *,
        ranks: int = 1,
        host: Host | None = None,
        expert_skew: float = 0.0,
    ) -> None:
        tp = tensor_parallel_size
        gpus = f"{tp} x {gpu.name}" if tp > 1 else gpu.name
        self.source = f"roofline, analytic: {model.name} on {gpus} ({_origin(gpu)})"
        byte_ps = PS_PER_S / (gpu.bandwidth_bytes_per_s * gpu.bandwidth_efficiency)
        flop_ps = PS_PER_S / (gpu.flops_per_s * gpu.matmul_efficiency)
        kv_bytes = model.kv_bytes_per_token_per_gpu(tp)
        activation_bytes = (
            model.layers * model.dtype_bytes * (12 * model.hidden_size + 3 * model.intermediate_size / tp)
        )

        kernels_s = KERNELS_PER_LAYER * gpu.kernel_overhead_s + gpu.attention_latency_s
        self._fixed_ps = model.layers * kernels_s * PS_PER_S
        self._weights = Weights(model, gpu, tp, ranks, byte_ps, flop_ps, expert_skew)
        self._pair_ps = model.prefill_pair_flops / tp * PS_PER_S / _attention_flops_per_s(gpu)
        self._token_ps = (activation_bytes + kv_bytes) * byte_ps
        self._copy_ps = 2 * kv_bytes * byte_ps
        starts_s, slot_s = 2 * model.layers * TRANSFER_LATENCY_S, kv_bytes / gpu.pcie_bytes_per_s
        self._swap_ps = starts_s * PS_PER_S, slot_s * PS_PER_S  # a block's copies begin; a slot of it
        self._contexts = Contexts(model, tp, byte_ps, flop_ps)
        self._context_ps = self._contexts.each_ps
        for least_ps, each_ps in _all_reduces_ps(model, gpu, tp, ranks):
            self._fixed_ps, self._token_ps = self._fixed_ps + least_ps, self._token_ps + each_ps
        self._states_ps = _states_ps(model, gpu, tp, byte_ps)
        self._least, self._row_ps = (0.0, 0.0), self._states_ps[0]
        if host is not None:
            each = host.base_s * PS_PER_S, host.per_sequence_s * PS_PER_S
            if host.overlapped:
                self._least = each
            else:
                self._fixed_ps, self._row_ps = self._fixed_ps + each[0], self._row_ps + each[1]
        # whether the durations of a span do not form a plain progression
        self._shaped = bool(self._contexts.window_ps or any(self._least))
        self._decode_ps: dict[int, int] = {}  # by copied slots and decoding sequences

    def step_ps(self, shape: StepShape) -> int:
        """The sum described above, truncated to whole picoseconds before the contexts are added."""
        tokens, pairs, seqs, decoding, context, copied, came, came_tokens, went, went_tokens, _, drafts, _ = (
            shape
        )
        rows = decoding + drafts
        duration = self._constant_ps(tokens, pairs, seqs, rows, copied) + self._context_ps * context
        if drafts:
            duration += self._contexts.drafts_ps(shape) - int(drafts * self._row_ps)
        if self._contexts.window_ps:
            duration += self._contexts.windowed_ps(context, decoding)
        if came or went:
            start_ps, slot_ps = self._swap_ps
            duration += int((came + went) * start_ps + (came_tokens + went_tokens) * slot_ps)
        base, each = self._least
        return max(duration, int(base + each * (seqs + decoding))) if base or each else duration

    def line(self, shape: StepShape, pairs_each: float = 0.0) -> tuple[int, int] | None:
        """As in `CostModel`; None if windows or an overlapped host make it nonlinear."""
        if self._shaped or shape.swapped_in_blocks or shape.swapped_out_blocks:
            return None
        each = self._context_ps
        if shape.draft_tokens and shape.decode_seqs:
            each += self._contexts.drafts_each_ps(shape.decode_seqs, shape.draft_tokens)
        constant = self.step_ps(shape) - each * shape.context_tokens
        return constant, each + round(pairs_each * self._pair_ps)

    def copying_ps(self, decode_seqs: int, context_tokens: int, copied: int, spread: Spread | None) -> int:
        """As in `CostModel`; the part that does not depend on contexts is usually cached."""
        if self._shaped:
            return super().copying_ps(decode_seqs, context_tokens, copied, spread)
        key = copied << SEQS_BITS | decode_seqs
        constant = self._decode_ps.get(key)
        if constant is None:
            constant = self._decode_ps[key] = self._constant_ps(0, 0, 0, decode_seqs, copied)
        return constant + self._context_ps * context_tokens

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """An arithmetic progression, a `range`; a list of two if the windows fill within the span."""
        first, delta = self._first_ps(decode_seqs, context_tokens), self._context_ps * decode_seqs
        if not self._shaped:
            return _progression(first, delta, steps)
        found = self._with_windows(first, delta, decode_seqs, context_tokens, steps)
        least = int(self._least[0] + self._least[1] * decode_seqs)
        return [max(each, least) for each in found] if least else found

    def span_ends(
        self, decode_seqs: int, context_tokens: int, steps: int, limit_ps: int, spread: Spread | None = None
    ) -> list[int]:
        """As in `CostModel`; a plain progression is extended only as far as necessary."""
        delta = self._context_ps * decode_seqs
        if self._shaped or not delta:
            if COMPILED and limit_ps < LONGEST_PS:
                return self._shaped_ends(decode_seqs, context_tokens, steps, limit_ps)
            return ends_until(limit_ps, self.span_ps(decode_seqs, context_tokens, steps))
        constant = self._decode_ps.get(decode_seqs)  # usually cached: see `_first_ps`
        if constant is None:
            first = self._first_ps(decode_seqs, context_tokens)
        else:
            first = constant + self._context_ps * context_tokens
        if COMPILED and limit_ps < LONGEST_PS and first < LONGEST_PS:
            one_by_one: list[int] = []
            add_ends(one_by_one, first, delta, 0, steps=steps, limit_ps=limit_ps)
            return one_by_one
        most = limit_ps // first + 1
        if steps == 1 or most == 1:
            return [first]
        if most > steps:
            most = steps
        if most <= FEW:
            end, ends = first, [first]
            for duration in range(first + delta, first + most * delta, delta):
                end += duration
                ends.append(end)
        else:
            ends = list(accumulate(range(first, first + most * delta, delta)))
        if ends[-1] > limit_ps:
            del ends[bisect_left(ends, limit_ps) + 1 :]
        return ends

    def go_on(
        self, ends: list[int], decode_seqs: int, context_tokens: int, more: tuple[int, int], limit_ps: int
    ) -> None:
        """As in `CostModel`; a plain progression goes one step at a time, as there are usually few."""
        steps, copied = more
        if self._shaped or steps > FEW:
            super().go_on(ends, decode_seqs, context_tokens, more, limit_ps)
            return
        constant = self._decode_ps.get(copied << SEQS_BITS | decode_seqs)
        if constant is None:
            end = ends[-1] + self.copying_ps(decode_seqs, context_tokens, copied, None)
        else:
            end = ends[-1] + constant + self._context_ps * context_tokens
        ends.append(end)
        if steps == 1 or end >= limit_ps:
            return
        duration, delta = self._first_ps(decode_seqs, context_tokens), self._context_ps * decode_seqs
        while steps > 1 and end < limit_ps:
            duration += delta
            end += duration
            ends.append(end)
            steps -= 1

    def _shaped_ends(self, decode_seqs: int, context_tokens: int, steps: int, limit_ps: int) -> list[int]:
        """Like `span_ends`, for any span, one step at a time."""
        plain: i64 = self._first_ps(decode_seqs, context_tokens)
        least: i64 = int(self._least[0] + self._least[1] * decode_seqs)
        delta: i64 = self._context_ps * decode_seqs
        window_ps: i64 = self._contexts.window_ps
        seqs: i64 = decode_seqs
        seen: i64 = self._contexts.window * decode_seqs
        context: i64 = context_tokens
        limit: i64 = limit_ps
        left: i64 = steps
        end: i64 = 0
        ends: list[int] = []
        while left and (end < limit or not end):
            end += max(plain + window_ps * min(context, seen), least)
            ends.append(int(end))
            plain += delta
            context += seqs
            left -= 1
        return ends

    def _first_ps(self, decode_seqs: int, context_tokens: int) -> int:
        """A decode step, without sliding windows and without the host's least time."""
        constant = self._decode_ps.get(decode_seqs)
        if constant is None:
            constant = self._decode_ps[decode_seqs] = self._constant_ps(0, 0, 0, decode_seqs, 0)
        return constant + self._context_ps * context_tokens

    def _with_windows(
        self, first: int, delta: int, decode_seqs: int, context_tokens: int, steps: int
    ) -> Sequence[int]:
        """The same progression plus the layers with a sliding window."""
        seen, window_ps = self._contexts.window * decode_seqs, self._contexts.window_ps
        if context_tokens >= seen:
            return _progression(first + window_ps * min(context_tokens, seen), delta, steps)
        filling = min(-(-(seen - context_tokens) // decode_seqs), steps)  # steps before the windows are full
        before = _progression(first + window_ps * context_tokens, delta + window_ps * decode_seqs, filling)
        if filling == steps:
            return before
        after = _progression(first + filling * delta + window_ps * seen, delta, steps - filling)
        return [*before, *after]

    def parts_ps(self, shape: StepShape) -> dict[str, float]:
        """The terms of the sum by name, without copies and swaps, to compare with measurements."""
        tokens, pairs, seqs, decoding, context, *_ = shape
        rows, drafts = seqs + decoding, shape.draft_tokens
        n, m = tokens + decoding + drafts, rows + drafts
        windowed_ps = self._contexts.windowed_ps(context, decoding)
        state_ps, scan_ps = self._states_ps
        return {
            "overhead": self._fixed_ps,
            "layers": self._weights.layers_ps(n),
            "LM head": self._weights.head_ps(m),
            "prefill": pairs * self._pair_ps,
            "traffic": n * self._token_ps,
            "decode": self._context_ps * context + windowed_ps + self._contexts.drafts_ps(shape),
            **({"states": rows * state_ps + tokens * scan_ps} if state_ps else {}),
        }

    def _constant_ps(self, tokens: int, pairs: int, seqs: int, decoding: int, copied: int) -> int:
        """Everything but the contexts."""
        n, m = tokens + decoding, seqs + decoding
        layers_ps, head_ps = self._weights.layers_ps(n), self._weights.head_ps(m)
        rest = pairs * self._pair_ps + n * self._token_ps + copied * self._copy_ps
        if self._row_ps:
            rest += m * self._row_ps + tokens * self._states_ps[1]
        return int(self._fixed_ps + layers_ps + head_ps + rest)


def _all_reduces_ps(model: ModelSpec, gpu: GpuSpec, tp: int, ranks: int) -> list[tuple[float, float]]:
    """Least time of a step's all-reduces, and time per token: over `tp`, and over ranks."""
    layers, found = model.layers, []
    vector = layers * model.hidden_size * model.dtype_bytes
    if tp > 1:
        least_s, each_s = all_reduce_s(gpu, group_of(gpu, tp))
        found.append((2 * layers * least_s * PS_PER_S, 2 * vector * each_s * PS_PER_S))
    if ranks > 1:
        least_s, each_s = all_reduce_s(gpu, group_of(gpu, ranks, tp))
        found.append((layers * least_s * PS_PER_S, ranks * vector * each_s * PS_PER_S))
    return found


def _attention_flops_per_s(gpu: GpuSpec) -> float:
    """Rate that prefill attention reaches."""
    return gpu.flops_per_s * PREFILL_ATTENTION_EFFICIENCY


def _states_ps(model: ModelSpec, gpu: GpuSpec, tp: int, byte_ps: float) -> tuple[float, float]:
    """Time of recurrent layers per sequence of a step, and per prompt token."""
    flops, moved = model.scan_per_token(tp)
    scan_ps = max(flops * PS_PER_S / _attention_flops_per_s(gpu), moved * byte_ps)
    return 2 * model.state_bytes_per_sequence(tp) * byte_ps, scan_ps


def _progression(first: int, delta: int, steps: int) -> Sequence[int]:
    """`steps` numbers from `first`, each `delta` more than the previous one."""
    return range(first, first + steps * delta, delta) if delta else [first] * steps


def _origin(gpu: GpuSpec) -> str:
    """The source of a GPU's numbers, in short."""
    built_in = gpu.name in gpu_names() and gpu == gpu_named(gpu.name)
    return "vendor datasheet" if built_in or not gpu.source else gpu.source
