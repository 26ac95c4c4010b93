"""Routed experts in whole blocks of rows, as DeepGEMM computes them in releases that pad experts.

The host does not know how many rows an expert gets, so each expert is padded by up to a block less one row,
and every block is launched (vLLM's compute_aligned_M in 0.12 to 0.14):

    blocks    ceil((rows + experts of this GPU * (block - 1)) / block)
    first     block of a chosen expert: its weights, and the block's rows in and out of two products, gate
              and quantization, at the part's bandwidth
    others    further rows, and padding: the weight tiles come from the L2 cache, so the longer of the work at
              the part's rate and the rows at its bandwidth
"""

from math import ceil

from kvsim.sim.cost.calibrated.layer import Experts
from kvsim.sim.cost.calibrated.parts import Part, Place, Priced, chosen_experts

PADDED: Place = ("experts in padded blocks", "", 0.0)


class PaddedExperts:
    """The routed experts of a layer on one GPU, for any number of tokens; never measured as a whole.

    Parameters
    ----------
    part : Part
        With the constants `block_rows` and `weight_bytes`.
    """

    def __init__(self, part: Part, layer: Experts) -> None:
        self._layer, self._rows, self._t0_ps = layer, part.constants["block_rows"], part.t0_ps
        hidden, inner = layer.hidden, layer.inner
        # 8 bits in, 16 out, for both products; 16 in and out for the gate; 16 in, 8 out for quantization
        moved = self._rows * (3 * hidden + 14 * inner) * part.byte_ps
        weights = 3 * hidden * inner
        self._first_ps = part.constants["weight_bytes"] * weights * part.byte_ps + moved
        self._other_ps = max(2 * self._rows * weights * part.work_ps, moved)

    def priced(self, tokens: int) -> Priced:
        """The time of the experts; `tokens` are those of one rank."""
        layer = self._layer
        tokens *= layer.ranks
        chosen, rows = chosen_experts(layer, tokens), tokens * layer.top_k * layer.local / layer.experts
        blocks = ceil((rows + layer.local * (self._rows - 1)) / self._rows)
        ps = self._t0_ps + chosen * self._first_ps + (blocks - chosen) * self._other_ps
        return Priced.of(ps, [PADDED])
