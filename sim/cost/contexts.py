"""Attention of decoding sequences on one GPU: each context is read once per step and computed with.

A token of a context takes the longer of the two. Layers with a sliding window see at most `window` tokens of
each sequence. Contexts are read once for all drafts, and computed with once more for each.
"""

from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.models.spec import ModelSpec


class Contexts:
    """Times per token of the contexts, in whole ps, as the contexts of a step may be large.

    Attributes
    ----------
    each_ps, window_ps : int
        In the layers that see the whole context, and in those with a window.
    window : int
        Tokens that a windowed layer sees; 0: there are none.
    """

    def __init__(self, model: ModelSpec, tp: int, byte_ps: float, flop_ps: float) -> None:
        self._flops_ps = model.decode_pair_flops / tp * flop_ps
        whole_ps = max(model.kv_bytes_per_token_per_gpu(tp) * byte_ps, self._flops_ps)
        self._windowed = model.window_layers / model.attention_layers if model.window_layers else 0.0
        self.each_ps = round(whole_ps * (1 - self._windowed))
        self.window_ps = round(whole_ps * self._windowed)
        self.window = model.window or 0

    def windowed_ps(self, context_tokens: int, decode_seqs: int) -> int:
        """The layers with a window."""
        return self.window_ps * min(context_tokens, self.window * decode_seqs)

    def drafts_ps(self, shape: StepShape) -> int:
        """Time by which computing with the contexts for each draft exceeds reading them."""
        context, decoding = shape.context_tokens, shape.decode_seqs
        if not (decoding and shape.draft_tokens):
            return 0
        each = self.drafts_each_ps(decoding, shape.draft_tokens)
        if not self._windowed:
            return each * context
        windowed = min(context, self.window * decoding)
        return int(each * ((1 - self._windowed) * context + self._windowed * windowed))

    def drafts_each_ps(self, decoding: int, drafts: int) -> int:
        """The same, per token of the contexts."""
        computed_ps = self._flops_ps * (1 + drafts / decoding)
        return max(round(computed_ps) - self.each_ps - self.window_ps, 0)
