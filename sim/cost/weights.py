"""The weights of a model on one GPU: the time to read them, and to multiply by them.

A step takes the longer of the two. With E experts per layer, k per token, E * (1 - (1 - k / E)^n) of them are
read for n tokens. Products of 8-bit and 4-bit numbers are faster on some GPUs.
"""

from kvsim.sim.cost.calibrated.layer import dense_precision, expert_precision, weight_only
from kvsim.sim.models.spec import GpuSpec, ModelSpec

EIGHT_BIT_GPUS = (
    *("h100", "h100-pcie", "h100-nvl", "h20", "h200", "b200", "b300", "gb200", "l4", "l40s"),
    *("rtx-4090", "rtx-5090", "rtx-pro-6000", "rtx-pro-6000-server", "mi300x", "mi325x"),
)
"""GPUs that multiply 8-bit numbers at twice the 16-bit peak, by their datasheets."""
FOUR_BIT_GPUS = ("b200", "b300", "gb200", "rtx-5090", "rtx-pro-6000", "rtx-pro-6000-server")
"""GPUs that multiply 4-bit numbers at four times the 16-bit peak."""


class Weights:
    """The layers' weights and the LM head's.

    Parameters
    ----------
    tp, ranks : int
        GPUs that share every layer; ranks of attention among which the experts are spread.
    byte_ps, flop_ps : float
        Time to read a byte, and time of an operation at the 16-bit peak.
    skew : float
        How unevenly tokens choose experts, see `Chosen`.
    """

    def __init__(  # noqa: PLR0917 - a model, a GPU and their rates
        self, model: ModelSpec, gpu: GpuSpec, tp: int, ranks: int, byte_ps: float, flop_ps: float, skew: float
    ) -> None:
        expert_bytes = model.expert_parameters * expert_precision(model).weight_bytes
        self._read_all_ps = model.body_weight_bytes / tp * byte_ps
        self._other_ranks_ps = expert_bytes * (1 - 1 / ranks) / tp * byte_ps
        self._experts_ps, self._ranks = expert_bytes / ranks / tp * byte_ps, ranks
        self._chosen = Chosen(model.experts, model.experts_per_token, skew)
        self._flops_ps = _body_flops(model, gpu) / tp * flop_ps
        self._head_read_ps = model.head_parameters * model.dtype_bytes / tp * byte_ps
        self._head_flops_ps = 2 * model.head_parameters / tp * flop_ps

    def layers_ps(self, tokens: int) -> float:
        """All layers, except attention, for so many tokens."""
        computed, read = tokens * self._flops_ps, self._read_all_ps
        if self._experts_ps:
            unread = self._experts_ps * (1 - self._chosen.share(tokens * self._ranks))
            read = self._read_all_ps - self._other_ranks_ps - unread
        return read if computed < read else computed

    def head_ps(self, rows: int) -> float:
        """The LM head for so many sequences; 0 for none."""
        computed = rows * self._head_flops_ps
        return self._head_read_ps if rows and computed < self._head_read_ps else computed


class Chosen:
    """How many of a layer's experts some tokens choose, each `top_k` independently, with one skew for all.

    The experts' probabilities fall as rank^-skew, none above 1; 0 is even.
    """

    def __init__(self, experts: int, top_k: int, skew: float) -> None:
        falling = [rank**-skew for rank in range(1, experts + 1)]
        total = sum(falling)
        chances = [min(top_k * each / total, 1.0) for each in falling]
        self._missed = [1 - chance for chance in (chances[:1] if skew == 0 else chances)]
        self._known: dict[int, float] = {}

    def share(self, tokens: int) -> float:
        """The expected share of the experts."""
        found = self._known.get(tokens)
        if found is None:
            unread = sum(missed**tokens for missed in self._missed) / len(self._missed)
            found = self._known[tokens] = 1 - unread
        return found


def speed_of(gpu: GpuSpec, model: ModelSpec, *, dense: bool) -> int:
    """Multiple of the 16-bit peak that products with the weights of dense layers, or of experts, reach."""
    parts = (dense_precision(model) if dense else expert_precision(model)).parts
    if weight_only(model) and model.weight_bits:
        return 1
    if parts[0] == "_nvfp4" and gpu.name in FOUR_BIT_GPUS:
        return 4
    return 2 if parts[0].startswith("_fp8") and gpu.name in EIGHT_BIT_GPUS else 1


def _body_flops(model: ModelSpec, gpu: GpuSpec) -> float:
    """Operations per token in all layers except attention, counted at the 16-bit peak."""
    idle = model.parameters - (model.active_parameters or model.parameters)  # experts not chosen
    dense = model.body_parameters - model.expert_parameters
    chosen = model.expert_parameters - idle if model.experts else 0
    if not model.experts:
        dense -= idle
    return 2 * (dense / speed_of(gpu, model, dense=True) + chosen / speed_of(gpu, model, dense=False))
