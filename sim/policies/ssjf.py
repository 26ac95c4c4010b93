"""SSJF: speculative shortest job first: the answer that a proxy predicts as shortest goes first, to its end.

    said   40  310  25  90     served   25  40  90  310

Source: Qiu et al., Efficient interactive LLM serving with proxy model-based sequence length prediction
(arXiv 2404.08509), section 3: a light model predicts the output length, the scheduler sorts by it, without
preemption.
"""

from kvsim.sim.policies.predicted import Predicting
from kvsim.sim.serving.request import Request


class Ssjf(Predicting):
    """Orders requests by predicted length."""

    family = "predicted length"
    idea = "the shortest predicted answer first, without preemption"
    needs = "a predictor"
    source = "arXiv 2404.08509, section 3"

    def key(self, request: Request, now_ps: int) -> int:
        return self.said(request)
