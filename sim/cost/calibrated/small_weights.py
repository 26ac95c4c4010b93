"""Products computed in more bits than the weights have: awq, gptq, and fp8 if the GPU has no fp8.

    read       weights in their own size, inputs and outputs, at the roofline's share of the bandwidth
    compute    tokens in whole tiles of 16, at the rate and ratio of the 16-bit product of these tokens
    product    t0 + the longer of the two, at most what 16-bit weights take

No public table has such a product. Its kernels (Marlin, arXiv:2408.11743) unpack weights on the way to the
tensor cores while the next ones are read, so that the two overlap. They use tiles of 16 tokens, the smallest
that tensor cores multiply, whereas 16-bit products use 128. So few tokens take as long as reading the
weights, and many as long as with 16-bit weights.
"""

from kvsim.sim.cost.calibrated.parts import Part, Priced, Product

TILE = 16


class SmallWeights:
    """Weights of `weight_bytes` each, times any number of tokens; `byte_ps`: the roofline's time per byte."""

    def __init__(self, part: Part, shape: tuple[int, int], weight_bytes: float, byte_ps: float) -> None:
        inputs, outputs = shape
        self._full = Product(part, inputs, outputs)
        self._part, self._byte_ps = part, byte_ps
        self._weights, self._token_bytes = weight_bytes * inputs * outputs, 2 * (inputs + outputs)
        self._row_ps = 2 * inputs * outputs * part.work_ps * part.constants.get("real_data", 1.0)
        self._places = ((f"weights of {8 * weight_bytes:g} bits", "", 0.0),)

    def priced(self, tokens: int) -> Priced:
        """The product for `tokens` tokens."""
        part, full = self._part, self._full
        read = (self._weights + tokens * self._token_bytes) * self._byte_ps
        computed = full.ratio(tokens) * -(-tokens // TILE) * TILE * self._row_ps
        return Priced.of(min(part.t0_ps + max(read, computed), full.priced(tokens).ps), self._places)
