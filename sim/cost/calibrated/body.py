"""The time that tokens take in all layers apart from attention, by a calibrated profile.

    a layer   2 norms, QKV, out, up and gate, down, rotary, activation, KV write, 2 all-reduces;
              with experts: a router (router.py) and the experts

layer.py defines which products and experts a layer has, and their precision. Anything the profile lacks
counts as outside. Without a part of their own, experts are priced by the form of matrix products, reading the
experts that the tokens are expected to choose. Weights of other bit widths are priced by small_weights.py, or
by experts that unpack theirs.
"""

from kvsim.sim.cost.calibrated.all_reduce import AllReduce
from kvsim.sim.cost.calibrated.layer import Layer, dense_precision, expert_precision, layer_of
from kvsim.sim.cost.calibrated.measured import Measured, Shard
from kvsim.sim.cost.calibrated.padded_experts import PaddedExperts
from kvsim.sim.cost.calibrated.parts import ExpertsPart, Priced, Product, chosen_experts, total
from kvsim.sim.cost.calibrated.router import CHOSEN_BEFORE, Router, slowness
from kvsim.sim.cost.calibrated.small_weights import SmallWeights
from kvsim.sim.cost.collective import group_of
from kvsim.sim.cost.options import CalibratedOptions
from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import PS_PER_S

Weights = Product | SmallWeights | ExpertsPart | PaddedExperts


class Body:
    """All layers of a model apart from attention, on one GPU.

    Attributes
    ----------
    over_tp, over_ranks : AllReduce
        Over the GPUs that share a layer, and over the ranks of attention.
    router : Router or None
        For layers with experts.
    products : list or None
        The products of a layer with its weights; None if its matrices are unknown.
    """

    def __init__(
        self, shard: Shard, measured: Measured, chosen: CalibratedOptions, shares_experts: bool
    ) -> None:
        self._shard, self._measured, self._chosen = shard, measured, chosen
        gpu, tp, link = shard.gpu, shard.tp, shard.gpu.link_bytes_per_s
        if chosen.fuse_allreduce_rms and link is None:
            raise KvsimError(f"fuse_allreduce_rms must be left out for gpu {gpu.name}, which has no links")
        one_shot_s = 1 / link if link and chosen.fuse_allreduce_rms else None
        reduce = measured.reduce
        self.over_tp = AllReduce(reduce, gpu, group_of(gpu, tp), one_shot_s)
        self.over_ranks = AllReduce(reduce, gpu, group_of(gpu, shard.ranks, tp), one_shot_s)
        self.router: Router | None = None
        self.products = self._layer_products(layer_of(shard.model, tp, shares_experts, shard.ranks))
        self._known: dict[int, Priced] = {}

    def tokens(self, n: int) -> Priced:
        """The time of n tokens; cached, as batch sizes recur."""
        found = self._known.get(n)
        if found is None:
            found = self._known[n] = self._through_layers(n)
        return found

    def _through_layers(self, n: int) -> Priced:
        shard, model, by_bytes = self._shard, self._shard.model, self._measured.by_bytes
        norm = by_bytes("elementwise", 8 * n * model.hidden_size)
        rotary = by_bytes("elementwise", 4 * n * (shard.heads + shard.kv_heads) * model.head_dim)
        summed = n * model.hidden_size * model.dtype_bytes
        layer = [
            *(norm, norm),
            *(product.priced(n) for product in self.products or ()),
            rotary,
            by_bytes("elementwise", 6 * n * (model.intermediate_size // shard.tp)),
            by_bytes("kv_write", n * shard.kept * (2 + shard.element_bytes)),
        ]
        if model.norms_over_heads:  # squares, their sum over the GPUs, and the norm
            layer += [rotary] * 2
        if shard.tp > 1:
            layer += [self.over_tp.priced(summed)] * 2
            if model.norms_over_heads:
                layer.append(self.over_tp.priced(8 * n))  # two 32-bit sums per token
        if shard.ranks > 1:  # to the experts and back: an all-gather and a reduce-scatter
            layer.append(self.over_ranks.priced(shard.ranks * summed))
        if self.router is not None:
            layer += self.router.launches(n)
        if self.products is None:
            layer.append(self._unmeasured_products(n))
        return total([total(layer).times(model.layers), norm])

    def _layer_products(self, layer: Layer | None) -> list[Weights] | None:
        if layer is None:
            return None
        precision, gpu, most = (
            dense_precision(self._shard.model),
            self._shard.gpu,
            self._shard.most_bytes_per_s,
        )
        dense = self._measured.in_precision("product", *precision.parts)
        part = self._measured.part(dense)
        found: list[Weights] = [Product(part, *shape, most) for shape in layer.products]
        if dense == "product" and precision.weight_bytes != part.constants.get("weight_bytes", 2):
            byte_ps = PS_PER_S / (gpu.bandwidth_bytes_per_s * gpu.bandwidth_efficiency)
            found = [SmallWeights(part, shape, precision.weight_bytes, byte_ps) for shape in layer.products]
        if layer.experts is None:
            return found
        return self._with_experts(layer, found)

    def _with_experts(self, layer: Layer, found: list[Weights]) -> list[Weights] | None:
        shard, measured, precision = self._shard, self._measured, expert_precision(self._shard.model)
        name = measured.in_precision("experts", *precision.parts, *precision.like)
        if layer.experts is None or name not in measured:
            return None
        kind = name.removeprefix("experts")
        small = None if kind in precision.parts else precision.weight_bytes
        if layer.router is not None:
            self.router = Router(
                measured.product, layer.router, shard.gpu, bits=shard.model.router_bits,
                slower=slowness(self._chosen.float32_matmul_precision, shard.gpu),
                launched=lambda moved: measured.by_bytes("elementwise", moved),
                chooses=kind in CHOSEN_BEFORE, most_bytes_per_s=shard.most_bytes_per_s,
            )  # fmt: skip
        part = measured.part(name)
        if "block_rows" in part.constants:
            return [*found, PaddedExperts(part, layer.experts)]
        return [*found, ExpertsPart(part, layer.experts, self._chosen.expert_skew, small)]

    def _unmeasured_products(self, n: int) -> Priced:
        """Products of other layers, by the form: needed weights are read, chosen ones are computed with."""
        model, tp, ranks = self._shard.model, self._shard.tp, self._shard.ranks
        form, share = self._measured.product, 1 / (model.layers * tp)
        idle = model.parameters - (model.active_parameters or model.parameters)  # experts not chosen
        moved = model.body_weight_bytes * share
        layer = layer_of(model, tp)
        if layer is not None and layer.experts is not None:
            chosen = chosen_experts(layer.experts, n * ranks) / layer.experts.local
            held = model.expert_parameters * expert_precision(model).weight_bytes * share
            moved -= held * (1 - chosen / ranks)
        ps = 3 * form.t0_ps + form.form_ps(moved, 2 * (model.body_parameters - idle) * share * n)
        experts = model.active_parameters not in (None, model.parameters)
        what = "mixture of experts" if experts else "layers of unusual matrices"
        return Priced.of(ps, [(what, "", 0.0)])
