"""Steps of servers whose GPUs compute different sequences, priced by the busiest rank.

    data parallel    d ranks, each with its own sequences and all dense weights; they share the experts
    pipeline         p stages of layers; p batches are in flight, one per stage

One step here is a round: every running sequence gets its token. With r = d * p batches in it, as even as
whole sequences allow, a round takes as long as its largest batch needs for all layers:

    round = step(ceil(m / r) of m decoding sequences, their share of the contexts,
                 ceil(k / r) of k prompts, their share of the tokens) + p * hop

A round of fewer than r sequences leaves ranks idle, and takes as long as one of r: the bubbles of the
pipeline. With d = p = 1 nothing changes.

    hop        least latency of a copy + batch * 2 * hidden * dtype / link: activations and residual; over
               the network from node to node
    experts    the tokens of all d ranks, priced by the cost model itself; moved there and back by an
               all-gather and a reduce-scatter per layer, which together move what an all-reduce does
               (vLLM's default, allgather_reducescatter)

Ranks are assumed to be balanced, with pooled memory and seats: capacity that a rank cannot use because its
own requests ended earlier is not modelled.
"""

from bisect import bisect_left
from collections.abc import Sequence

from kvsim.sim.cost.roofline import TRANSFER_LATENCY_S
from kvsim.sim.cost.step_cost import CostModel, Spread, StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.workload import PS_PER_S


class Ranks(CostModel):
    """The cost of a round, from that of its largest batch.

    Parameters
    ----------
    batch : CostModel
        The cost of one batch through all layers.
    deployment : Deployment
        With `data_parallel_size` and `pipeline_parallel_size`.
    """

    def __init__(self, batch: CostModel, deployment: Deployment) -> None:
        model, gpu, stages = deployment.model, deployment.served_gpu, deployment.pipeline_parallel_size
        ranks = deployment.data_parallel_size
        self._batch, self._count = batch, ranks * stages
        self.source = f"{batch.source}; {deployment.ranks_words}"
        self.context_tile, self.flags = batch.context_tile, batch.flags
        self._hop_ps, self._row_ps = 0.0, 0.0
        if stages > 1:
            moved = 2 * model.hidden_size * model.dtype_bytes
            between = min((deployment.gpus - 1) // gpu.node_gpus, stages)  # hops between nodes
            copies = 1 if gpu.link_bytes_per_s or gpu.peer_access else 2  # to the host, and from it
            link_s = copies * (stages - between) / (gpu.link_bytes_per_s or gpu.pcie_bytes_per_s)
            self._hop_ps = (stages + (copies - 1) * (stages - between)) * TRANSFER_LATENCY_S * PS_PER_S
            self._row_ps = moved * (link_s + between / gpu.network_bytes_per_s) * PS_PER_S
        self._last: tuple[StepShape | None, StepShape] = None, StepShape()

    @property
    def extrapolated_share(self) -> float:
        return self._batch.extrapolated_share

    def outside(self) -> list[str]:
        return self._batch.outside()

    def carried_out(self, shape: StepShape, duration_ps: int) -> None:
        largest = self._largest(shape)
        hops = self._hops_ps(largest.prefill_tokens + largest.decode_seqs + largest.draft_tokens)
        self._batch.carried_out(largest, duration_ps - hops)

    def span_carried_out(self, decode_seqs: int, context_tokens: int, ends: Sequence[int]) -> None:
        seqs = -(-decode_seqs // self._count)
        hops = self._hops_ps(seqs)
        without = [end - (step + 1) * hops for step, end in enumerate(ends)]
        self._batch.span_carried_out(seqs, context_tokens * seqs // decode_seqs, without)

    def step_ps(self, shape: StepShape) -> int:
        largest = self._largest(shape)
        rows = largest.prefill_tokens + largest.decode_seqs + largest.draft_tokens
        return self._batch.step_ps(largest) + self._hops_ps(rows)

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        if not decode_seqs:
            return self._batch.span_ps(decode_seqs, context_tokens, steps)
        seqs = -(-decode_seqs // self._count)
        hops = self._hops_ps(seqs)
        found = self._batch.span_ps(seqs, context_tokens * seqs // decode_seqs, steps)
        return [each + hops for each in found] if hops else found

    def span_ends(
        self, decode_seqs: int, context_tokens: int, steps: int, limit_ps: int, spread: Spread | None = None
    ) -> list[int]:
        if not decode_seqs:
            return self._batch.span_ends(decode_seqs, context_tokens, steps, limit_ps, spread)
        seqs = -(-decode_seqs // self._count)
        if spread is not None:
            spread = spread._replace(rounded=spread.rounded * seqs // decode_seqs)
        hops = self._hops_ps(seqs)
        context = context_tokens * seqs // decode_seqs
        ends = self._batch.span_ends(seqs, context, steps, limit_ps, spread)
        if hops:
            ends = [end + (step + 1) * hops for step, end in enumerate(ends)]
            del ends[bisect_left(ends, limit_ps) + 1 :]
        return ends

    def _hops_ps(self, rows: int) -> int:
        """Time to transfer a batch of `rows` tokens between stages."""
        return int(self._hop_ps + rows * self._row_ps)

    def _largest(self, shape: StepShape) -> StepShape:
        """The largest batch of a round; all GPUs do their own copies and swaps concurrently."""
        last, largest = self._last
        if last is shape:
            return largest
        count, prompts, decoding = self._count, shape.prefill_seqs, shape.decode_seqs
        if prompts:
            most = -(-prompts // count)
            tokens, pairs = (
                -(-each * most // prompts) for each in (shape.prefill_tokens, shape.prefill_pairs)
            )
            largest = shape._replace(prefill_tokens=tokens, prefill_pairs=pairs, prefill_seqs=most)
        else:
            largest = shape
        if shape.draft_tokens:
            largest = largest._replace(draft_tokens=-(-shape.draft_tokens // count))
        if decoding:
            most = -(-decoding // count)
            spread = shape.spread
            if spread is not None:
                spread = spread._replace(rounded=spread.rounded * most // decoding)
            context = shape.context_tokens * most // decoding
            largest = largest._replace(decode_seqs=most, context_tokens=context, spread=spread)
        self._last = shape, largest
        return largest
