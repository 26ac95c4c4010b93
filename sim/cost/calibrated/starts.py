"""What starting kernels adds to a step: by graphs, in pieces, one by one; and the host's own work.

    graph    decode-only steps and verified drafts of at most 512 tokens, as engines capture: one replay
    pieces   steps with prompts, of at most 512 tokens: a graph between consecutive attentions, except for
             PLAIN_PROMPTS
    eager    all others, and all with enforce_eager: every kernel from the host
    host     its own work (sim/cost/host.py): added, or, with asynchronous scheduling, a step's least time

Pieces and kernels started one by one are a step's least time: the GPU computes meanwhile.
"""

from collections.abc import Mapping
from typing import Any

from kvsim.sim.cost.host import PLAIN_PROMPTS, engine_of, host_of
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.workload import PS_PER_S

GRAPH_SEQS = 512
"""Largest batch that vLLM captures in a CUDA graph by default."""
KERNELS_PER_LAYER = 9
"""Two norms, four products, rotary, KV write, activation; without attention and all-reduces."""
KERNELS_PER_STEP = 3
"""Norm, LM head, sampling."""


class Starts:
    """How the steps of a deployment are started.

    Attributes
    ----------
    cut_ps : float
        To divide the contexts before decode attention, once per kind of layers.
    added_ps : (float, float)
        The host's own work that nothing hides: per step, per sequence.
    """

    def __init__(self, deployment: Deployment, launch: Mapping[str, Any], kinds: int) -> None:
        self._layers, self._tp = deployment.model.layers, deployment.tensor_parallel_size
        self._eager_ps: float = launch["eager_s"] * PS_PER_S
        self._replay_ps: float = launch["replay_s"] * PS_PER_S
        self.cut_ps: float = kinds * launch.get("cut_s", 0.0) * PS_PER_S
        eager = deployment.engine.enforce_eager
        self._graph_seqs = 0 if eager else GRAPH_SEQS
        self._pieces_tokens = GRAPH_SEQS if engine_of(deployment) not in PLAIN_PROMPTS and not eager else 0
        self._prompts_ps = [self._one_by_one_ps(seqs, prompts=True) for seqs in (0, 1)]
        self._pieces_ps = [int(self._layers * (1 + seqs) * self._eager_ps) for seqs in (0, 1)]
        host = host_of(deployment)
        work = (host.base_s * PS_PER_S, host.per_sequence_s * PS_PER_S) if host else (0.0, 0.0)
        overlapped = host is not None and host.overlapped
        self.added_ps, self._hidden_ps = ((0.0, 0.0), work) if overlapped else (work, (0.0, 0.0))

    def mixed(self, prompts: int, seqs: int, drafts: int, sequences: int) -> tuple[int, int]:
        """(ps added, least ps) of a step with prompts or drafts.

        Parameters
        ----------
        prompts, seqs, drafts : int
            Tokens of prompts, decoding sequences, tokens of drafts.
        sequences : int
            Prompts and decoding sequences together.
        """
        computed = prompts + seqs + drafts
        base, each = self._hidden_ps
        hidden = int(base + each * sequences)
        if not prompts and computed <= self._graph_seqs:
            return int(self._replay_ps), hidden
        least = (self._pieces_ps if computed <= self._pieces_tokens else self._prompts_ps)[seqs > 0]
        return 0, least if least > hidden else hidden

    def decoding(self, seqs: int) -> tuple[float, int]:
        """(ps added, least ps) of a decode-only step; cutting is part of what is added."""
        graph = seqs <= self._graph_seqs
        base, each = self._hidden_ps
        least = max(0 if graph else self._one_by_one_ps(seqs, prompts=False), int(base + each * seqs))
        return self.cut_ps + (self._replay_ps if graph else 0.0), least

    def _one_by_one_ps(self, seqs: int, prompts: bool) -> int:
        """Host time to launch all kernels one by one."""
        kernels = KERNELS_PER_LAYER + 2 * (seqs > 0) + prompts + 2 * (self._tp > 1)
        return int((self._layers * kernels + KERNELS_PER_STEP) * self._eager_ps)
