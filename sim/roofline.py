"""The analytic step time: from the datasheet and the geometry, with stated efficiencies.

It is linear in the contexts, with an integer slope, so the durations of a whole span are a `range`: computed
in O(1).
"""

from collections.abc import Sequence

from kvsim.sim.catalog import gpu_named, gpu_names
from kvsim.sim.config import GpuSpec, ModelSpec
from kvsim.sim.step_cost import CostModel, StepShape
from kvsim.sim.workload import PS_PER_S

KERNELS_PER_LAYER = 10
"""Norm, QKV, rotary, KV write, attention, out, norm, up, activation, down: as vLLM fuses them."""

PREFILL_ATTENTION_EFFICIENCY = 0.55
"""Share of the peak that prefill attention reaches: public H100 tables show 0.53 (median) from 4k tokens."""

ATTENTION_LATENCY_S = 9e-6
"""What no attention falls below, beside the start of one kernel: reads that wait for each other (length,
block table, keys, values) and the second kernel, which joins the parts of split contexts. H100 tables: 12 us
in all, the median of decode at batch <= 16 and context <= 64, where there is next to nothing to read."""

ALL_REDUCE_LATENCY_S = 10e-6

TRANSFER_LATENCY_S = 5e-6
"""Start of one copy between GPU and host (cudaMemcpyAsync)."""


class Roofline(CostModel):
    """Analytic time of a step on `tp` GPUs that share every layer.

    With B = bandwidth * bandwidth_efficiency (bytes/s), F = peak * matmul_efficiency (flop/s), n = prefill
    tokens + decoding sequences, m = prefilling + decoding sequences, all per GPU:

        overhead   layers * (10 kernels * kernel_overhead + 9 us of latency in attention)
        layers     max(weight bytes / tp / B, 2 * active parameters * n / tp / F)
        LM head    the same with vocab * hidden parameters and m instead of n
        prefill    4 * layers * heads / tp * head_dim * pairs / (0.55 * peak)
        traffic    n * (layers * dtype * (12 * hidden + 3 * intermediate / tp) + KV bytes) / B
                   (norms, residual, rotary, activation; the KV write)
        decode     contexts * max(KV bytes per token / B, 4 * layers * heads / tp * head_dim / F);
                   windowed layers: min(contexts, window * decoding sequences) instead of contexts
        copies     2 * copied tokens * KV bytes per token / B
        swaps      2 * layers * swapped blocks * 5 us + swapped slots * KV bytes / PCIe
                   (a transfer for the keys and one for the values of each block in each layer)
        all-reduce tp > 1: 2 * layers * (10 us + 2 * (tp - 1) / tp * n * hidden * dtype / link), a ring;
                   over PCIe when the GPU has no link

    They add up: no overlap. Mixture of experts: every step reads all experts, each token computes with
    its own. MLA: a prompt's keys and values are written out, 2 * heads * (2 * head_dim + rope) per layer
    and pair; decoding works on the latent, 2 * heads * (2 * latent - rope), which every GPU reads whole.
    Prompts count all pairs, windows or not. Ignored: the CPU side (scheduling, sampling), skew between
    contexts, many short contexts (a round of programs takes 3.5 us), tile rounding, pipeline bubbles.
    """

    def __init__(self, model: ModelSpec, gpu: GpuSpec, tensor_parallel_size: int = 1) -> None:
        tp = tensor_parallel_size
        gpus = f"{tp} x {gpu.name}" if tp > 1 else gpu.name
        self.source = f"roofline, analytic: {model.name} on {gpus} ({_origin(gpu)})"
        byte_ps = PS_PER_S / (gpu.bandwidth_bytes_per_s * gpu.bandwidth_efficiency)
        flop_ps = PS_PER_S / (gpu.flops_per_s * gpu.matmul_efficiency)
        kv_bytes = model.kv_bytes_per_token_per_gpu(tp)
        idle = model.parameters - (model.active_parameters or model.parameters)  # experts not chosen
        activation_bytes = (
            model.layers * model.dtype_bytes * (12 * model.hidden_size + 3 * model.intermediate_size / tp)
        )

        kernels_s = KERNELS_PER_LAYER * gpu.kernel_overhead_s + ATTENTION_LATENCY_S
        self._fixed_ps = model.layers * kernels_s * PS_PER_S
        self._body_read_ps = model.body_weight_bytes / tp * byte_ps
        self._body_flops_ps = 2 * (model.body_parameters - idle) / tp * flop_ps
        self._head_read_ps = model.head_parameters * model.dtype_bytes / tp * byte_ps
        self._head_flops_ps = 2 * model.head_parameters / tp * flop_ps
        self._pair_ps = (
            model.prefill_pair_flops / tp * PS_PER_S / (gpu.flops_per_s * PREFILL_ATTENTION_EFFICIENCY)
        )
        self._token_ps = (activation_bytes + kv_bytes) * byte_ps
        self._copy_ps = 2 * kv_bytes * byte_ps
        self._swap_start_ps = 2 * model.layers * TRANSFER_LATENCY_S * PS_PER_S
        self._swap_ps = kv_bytes / gpu.pcie_bytes_per_s * PS_PER_S
        context_ps = max(kv_bytes * byte_ps, model.decode_pair_flops / tp * flop_ps)
        windowed = model.window_layers / model.layers
        self._context_ps = round(context_ps * (1 - windowed))
        self._window_ps = round(context_ps * windowed)
        self._window = model.window or 0
        if tp > 1:
            link = gpu.link_bytes_per_s or gpu.pcie_bytes_per_s
            ring_bytes = 2 * (tp - 1) / tp * model.hidden_size * model.dtype_bytes
            self._fixed_ps += 2 * model.layers * ALL_REDUCE_LATENCY_S * PS_PER_S
            self._token_ps += 2 * model.layers * ring_bytes / link * PS_PER_S
        self._decode_ps: dict[int, int] = {}

    def step_ps(self, shape: StepShape) -> int:
        """The sum above, cut to whole picoseconds before the contexts are added."""
        tokens, pairs, seqs, decoding, context, copied, *_ = shape
        duration = self._constant_ps(tokens, pairs, seqs, decoding, copied) + self._context_ps * context
        if self._window_ps:
            duration += self._window_ps * min(context, self._window * decoding)
        blocks = shape.swapped_in_blocks + shape.swapped_out_blocks
        if blocks:
            swapped = shape.swapped_in_tokens + shape.swapped_out_tokens
            duration += int(blocks * self._swap_start_ps + swapped * self._swap_ps)
        return duration

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """An arithmetic progression, a `range`; a list of two where the windows fill within the span."""
        constant = self._decode_ps.get(decode_seqs)
        if constant is None:
            constant = self._decode_ps[decode_seqs] = self._constant_ps(0, 0, 0, decode_seqs, 0)
        first, delta = constant + self._context_ps * context_tokens, self._context_ps * decode_seqs
        if not self._window_ps:
            return range(first, first + steps * delta, delta) if delta else [first] * steps
        seen = self._window * decode_seqs
        if context_tokens >= seen:
            return _progression(first + self._window_ps * min(context_tokens, seen), delta, steps)
        filling = min(-(-(seen - context_tokens) // decode_seqs), steps)  # steps before the windows are full
        before = _progression(
            first + self._window_ps * context_tokens, delta + self._window_ps * decode_seqs, filling
        )
        if filling == steps:
            return before
        after = _progression(first + filling * delta + self._window_ps * seen, delta, steps - filling)
        return [*before, *after]

    def parts_ps(self, shape: StepShape) -> dict[str, float]:
        """The terms of the sum by name, the copies and swaps left out: what to compare with measurements."""
        tokens, pairs, seqs, decoding, context, *_ = shape
        n, m = tokens + decoding, seqs + decoding
        windowed = min(context, self._window * decoding)
        return {
            "overhead": self._fixed_ps,
            "layers": max(self._body_read_ps, n * self._body_flops_ps),
            "LM head": max(self._head_read_ps, m * self._head_flops_ps) if m else 0.0,
            "prefill": pairs * self._pair_ps,
            "traffic": n * self._token_ps,
            "decode": self._context_ps * context + self._window_ps * windowed,
        }

    def _constant_ps(self, tokens: int, pairs: int, seqs: int, decoding: int, copied: int) -> int:
        """All but the contexts."""
        n, m = tokens + decoding, seqs + decoding
        body, head = n * self._body_flops_ps, m * self._head_flops_ps
        if body < self._body_read_ps:
            body = self._body_read_ps
        if m and head < self._head_read_ps:
            head = self._head_read_ps
        rest = pairs * self._pair_ps + n * self._token_ps + copied * self._copy_ps
        return int(self._fixed_ps + body + head + rest)


def _progression(first: int, delta: int, steps: int) -> Sequence[int]:
    """`steps` numbers from `first`, each `delta` more than the one before."""
    return range(first, first + steps * delta, delta) if delta else [first] * steps


def _origin(gpu: GpuSpec) -> str:
    """Where the numbers of a GPU come from, in short."""
    built_in = gpu.name in gpu_names() and gpu == gpu_named(gpu.name)
    return "vendor datasheet" if built_in or not gpu.source else gpu.source
