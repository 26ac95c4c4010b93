"""What a step of a model is made of, priced by a calibrated profile, as one of the `tp` GPUs has it.

    tokens(n)        norms, QKV, rotary, KV write, out, up and gate, activation, down, 2 all-reduces a layer;
                     of experts a router (router.py)
    rows(m)          LM head and sampling of m rows
    decode, prefill  attention in all layers
    copies           copy-on-write; blocks from and to the host: one copy for keys, one for values, a layer

Which products and experts a layer has, and in which precision, says layer.py; a profile may have a part for
each precision (`product_fp8`, `decode_fp8`, `experts_nvfp4`). Beside its price each part tells how much of it
lies outside what was measured, and on which axes. What a profile lacks is outside throughout, and priced so:
experts, where it has no part for them, by the form of matrix products, those read that the tokens are
expected to choose; weights of other bits by small_weights.py, or by experts that unpack theirs; decoding over
latents (MLA), where it has no part for it, by the bandwidth of the products and their peak, and prompts of
such models always by their pairs at the rate of prefill attention; recurrent layers by bandwidth and peak,
their states and scans as in the roofline; all-reduces and copies to and from the host as in the roofline.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

from kvsim.sim.cost.calibrated.all_reduce import AllReduce
from kvsim.sim.cost.calibrated.decode import DecodePart, over_heads, over_latents
from kvsim.sim.cost.calibrated.layer import (
    Layer,
    dense_precision,
    expert_precision,
    layer_of,
)
from kvsim.sim.cost.calibrated.padded_experts import PaddedExperts
from kvsim.sim.cost.calibrated.parts import (
    Along,
    ExpertsPart,
    Part,
    Place,
    Priced,
    Product,
    chosen_experts,
    total,
)
from kvsim.sim.cost.calibrated.prefill import PrefillPart
from kvsim.sim.cost.calibrated.router import CHOSEN_BEFORE, Router, slowness
from kvsim.sim.cost.calibrated.small_weights import SmallWeights
from kvsim.sim.cost.collective import group_of
from kvsim.sim.cost.host import PLAIN_PROMPTS, engine_of
from kvsim.sim.cost.options import CalibratedOptions
from kvsim.sim.cost.roofline import TRANSFER_LATENCY_S
from kvsim.sim.cost.step_cost import Spread, StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.errors import KvsimError
from kvsim.sim.option import taken
from kvsim.sim.workload import PS_PER_S

BLOCK_SIZE = 16
"""Of those that keep keys and values in one piece: what the profile's main tables were measured with."""
PROMPTS_KEPT = 1 << 16
REDUCE = "all_reduce"
BY_SIZE = ("sampling", "elementwise", "kv_write", "block_copy", "to_host", "to_gpu", REDUCE)
"""Parts that only move bytes."""
LATENT = ("multi-head latent attention", "", 0.0)
LATENT_PROMPTS = ("prompts of multi-head latent attention", "", 0.0)
LEAST_HEADS = 16
"""Query heads of a program over latents: fewer take as long (kernels/calibration/form.py)."""
RECURRENT = ("recurrent layers", "", 0.0)


Weights = Product | SmallWeights | ExpertsPart | PaddedExperts


class StepParts:
    """The parts of one deployment's steps.

    Attributes
    ----------
    decode : DecodePart or None
        Of layers that see everything, over keys and values or latents; None where there are none, or latents
        that were not measured.
    windowed : DecodePart or None
        Of those with a sliding window.
    block : mapping of str to Priced
        "to_gpu", "to_host": moving one block in all layers.
    """

    def __init__(self, deployment: Deployment, parts: Mapping[str, Any]) -> None:
        model, tp, engine = deployment.served_model, deployment.tensor_parallel_size, deployment.engine
        self._model, self._tp, self._gpu = model, tp, deployment.served_gpu
        chosen = taken(CalibratedOptions, deployment.options)
        if chosen.fuse_allreduce_rms and self._gpu.link_bytes_per_s is None:
            raise KvsimError(
                f"fuse_allreduce_rms must be left out for gpu {self._gpu.name}, which has no links"
            )
        self._skew, self._shares_experts = chosen.expert_skew, deployment.enable_expert_parallel
        self._slower = slowness(chosen.float32_matmul_precision, self._gpu)
        self._ranks = deployment.data_parallel_size
        self._heads, self._kv_heads = model.heads // tp, -(-model.kv_heads // tp)
        self._kept = model.kv_latent_dim or 2 * self._kv_heads * model.head_dim  # numbers, in a layer
        self._element = model.kv_dtype_bytes or model.dtype_bytes
        elsewhere = deployment.cost == "measured-elsewhere"
        self._most_bytes_per_s = self._gpu.bandwidth_bytes_per_s if elsewhere else inf
        has_blocks = deployment.allocator.has_blocks
        self._block_size = engine.block_size if has_blocks else BLOCK_SIZE
        self._limits: dict[str, Mapping[str, tuple[float, float]]] = {}
        self._product = self._part("product", parts)
        self._parts = {name: Part(name, parts[name]) for name in BY_SIZE if name in parts}
        self._by_size = {name: Along(part, "bytes") for name, part in self._parts.items() if name != REDUCE}
        reduce, link = self._parts.get(REDUCE), self._gpu.link_bytes_per_s
        one_shot_s = 1 / link if link and chosen.fuse_allreduce_rms else None
        self._over_tp = AllReduce(reduce, self._gpu, group_of(self._gpu, tp), one_shot_s)
        self._over_ranks = AllReduce(reduce, self._gpu, group_of(self._gpu, self._ranks, tp), one_shot_s)
        group = self._heads // self._kv_heads
        geometry = {
            "kv_heads": self._kv_heads,
            "group": group,
            "head_dim": model.head_dim,
            "element_bytes": self._element,
            "block_size": self._block_size,
        }
        prefill = in_precision(parts, "prefill", "_fp8" if self._element == 1 else "")
        full = model.attention_layers - model.window_layers
        self._prefill = PrefillPart(
            parts[prefill], layers=full or model.layers, sinks=model.sinks, **geometry
        )
        self._windowed_prefill = (
            PrefillPart(parts[prefill], layers=model.window_layers, **geometry)
            if model.window_layers
            else None
        )
        self._full_prefill = bool(full)
        self._recurrent = model.recurrent_layers > 0
        self.decode = self._decode(parts, full, geometry)
        self.windowed = self._decode(parts, model.window_layers, geometry)
        tiled = self.decode or self.windowed
        self._one_launch = (
            tiled is not None and tiled.one_launch and engine_of(deployment) not in PLAIN_PROMPTS
        )
        self.block = {way: self._block(way) for way in ("to_gpu", "to_host")}
        self._router: Router | None = None
        self._products = self._layer_products(parts)
        head = self._part("lm_head", parts) if "lm_head" in parts else self._product
        self._head = Product(head, model.hidden_size, -(-model.vocab_size // tp), self._most_bytes_per_s)
        self._verify_ps = self._prefill.part.work_ps * model.decode_pair_flops / tp
        self._windowed_share = model.window_layers / (model.attention_layers or 1)
        self._tokens: dict[int, Priced] = {}
        self._rows: dict[int, Priced] = {}
        self._prompts: dict[tuple[int, int, int], Priced] = {}  # whole prompts of one length come again

    def _part(self, name: str, parts: Mapping[str, Any]) -> Part:
        """A part whose limits may be asked for."""
        found = Part(name, parts[name])
        self._limits[name] = found.limits
        return found

    def _decode(self, parts: Mapping[str, Any], layers: int, own: Mapping[str, int]) -> DecodePart | None:
        if not layers:
            return None
        if self._model.kv_latent_dim:
            return self._over_latents(parts, layers, self._model.kv_latent_dim)
        name, element = in_precision(parts, "decode", "_fp8" if self._element == 1 else ""), self._element
        kv_heads, group, head_dim = (own[each] for each in ("kv_heads", "group", "head_dim"))
        fixed = {each: own[each] for each in ("block_size", "group", "head_dim", "element_bytes")}
        part = Part("decode", parts[name], **fixed)
        return DecodePart(
            part, over_heads(part, kv_heads, head_dim, element), layers=layers, group=group,
            head_dim=head_dim, element_bytes=element, most_bytes_per_s=self._most_bytes_per_s,
        )  # fmt: skip

    def _over_latents(self, parts: Mapping[str, Any], layers: int, width: int) -> DecodePart | None:
        """None where the profile has no part for it."""
        if "latent" not in parts:
            return None
        fixed = {"block_size": self._block_size, "element_bytes": self._element, "width": width}
        part = Part("latent", parts["latent"], **fixed, heads=max(self._heads, LEAST_HEADS))
        kernel = over_latents(part, self._heads, width, self._element)
        return DecodePart(part, kernel, layers=layers, most_bytes_per_s=self._most_bytes_per_s)

    # -- all but attention --------------------------------------------------------------------

    def tokens(self, n: int) -> Priced:
        """All that n tokens need beside attention and logits; kept, as batches come again."""
        found = self._tokens.get(n)
        if found is None:
            found = self._tokens[n] = self._through_layers(n)
        return found

    def rows(self, m: int) -> Priced:
        """Logits and sampling of m sequences; kept likewise."""
        found = self._rows.get(m)
        if found is None:
            sampled = self._by_bytes("sampling", 2 * m * self._model.vocab_size)
            states = [self._states(m, 0)] if self._recurrent else []
            found = self._rows[m] = total([self._head.priced(m), sampled, *states] if m else [])
        return found

    def _through_layers(self, n: int) -> Priced:
        model, head_dim = self._model, self._model.head_dim
        norm = self._by_bytes("elementwise", 8 * n * model.hidden_size)
        summed = n * model.hidden_size * model.dtype_bytes
        layer = [
            *(norm, norm),
            *(product.priced(n) for product in self._products or ()),
            self._by_bytes("elementwise", 4 * n * (self._heads + self._kv_heads) * head_dim),
            self._by_bytes("elementwise", 6 * n * (model.intermediate_size // self._tp)),
            self._by_bytes("kv_write", n * self._kept * (2 + self._element)),
        ]
        if model.norms_over_heads:  # their squares, the sum of these over the GPUs, and the norm
            layer += [self._by_bytes("elementwise", 4 * n * (self._heads + self._kv_heads) * head_dim)] * 2
        if self._tp > 1:
            layer += [self._over_tp.priced(summed)] * 2
            if model.norms_over_heads:
                layer.append(self._over_tp.priced(8 * n))  # two sums of 32 bits a token
        if self._ranks > 1:  # to the experts and back: an all-gather and a reduce-scatter
            layer.append(self._over_ranks.priced(self._ranks * summed))
        if self._router is not None:
            layer += self._router.launches(n)
        if self._products is None:
            layer.append(self._unmeasured_products(n))
        return total([total(layer).times(model.layers), norm])

    def _by_bytes(self, name: str, moved: float) -> Priced:
        return self._by_size[name].priced(moved, 0.0, moved)

    def _layer_products(self, parts: Mapping[str, Any]) -> list[Weights] | None:
        """What a layer computes with its weights; None where this profile cannot say."""
        model, tp = self._model, self._tp
        layer = layer_of(model, tp, self._shares_experts, self._ranks)
        if layer is None:
            return None
        precision, gpu = dense_precision(model), self._gpu
        dense = in_precision(parts, "product", *precision.parts)
        part = self._part(dense, parts)
        most = self._most_bytes_per_s
        found: list[Weights] = [Product(part, *shape, most) for shape in layer.products]
        if dense == "product" and precision.weight_bytes != part.constants.get("weight_bytes", 2):
            byte_ps = PS_PER_S / (gpu.bandwidth_bytes_per_s * gpu.bandwidth_efficiency)
            found = [SmallWeights(part, shape, precision.weight_bytes, byte_ps) for shape in layer.products]
        if layer.experts is None:
            return found
        return self._with_experts(parts, layer, found)

    def _with_experts(
        self, parts: Mapping[str, Any], layer: Layer, found: list[Weights]
    ) -> list[Weights] | None:
        precision = expert_precision(self._model)
        name = in_precision(parts, "experts", *precision.parts, *precision.like)
        if layer.experts is None or name not in parts:
            return None
        kind = name.removeprefix("experts")
        small = None if kind in precision.parts else precision.weight_bytes
        if layer.router is not None:
            self._router = Router(
                self._product, layer.router, self._gpu, bits=self._model.router_bits, slower=self._slower,
                launched=lambda moved: self._by_bytes("elementwise", moved), chooses=kind in CHOSEN_BEFORE,
                most_bytes_per_s=self._most_bytes_per_s,
            )  # fmt: skip
        part = self._part(name, parts)
        if "block_rows" in part.constants:
            return [*found, PaddedExperts(part, layer.experts)]
        return [*found, ExpertsPart(part, layer.experts, self._skew, small)]

    def _unmeasured_products(self, n: int) -> Priced:
        """Those of other layers, by the form: what is needed is read, what is chosen computed with."""
        model, form, share = self._model, self._product, 1 / (self._model.layers * self._tp)
        idle = model.parameters - (model.active_parameters or model.parameters)  # experts not chosen
        moved = model.body_weight_bytes * share
        layer = layer_of(model, self._tp)
        if layer is not None and layer.experts is not None:
            chosen = chosen_experts(layer.experts, n * self._ranks) / layer.experts.local
            held = model.expert_parameters * expert_precision(model).weight_bytes * share
            moved -= held * (1 - chosen / self._ranks)
        ps = 3 * form.t0_ps + form.form_ps(moved, 2 * (model.body_parameters - idle) * share * n)
        return Priced.of(ps, [(self._unmeasured_layers(), "", 0.0)])

    # -- attention ----------------------------------------------------------------------------

    def decode_ends_ps(self, seqs: int, total: int, spread: Spread | None, steps: int) -> tuple[float, float]:
        """Attention of decoding sequences in all layers, in a step and so many steps later."""
        if self.decode is not None and self.windowed is None:
            return self.decode.ends_ps(seqs, total, spread, steps)
        later = spread and spread.later(steps, seqs)
        return self._decode_ps(seqs, total, spread), self._decode_ps(seqs, total + steps * seqs, later)

    def _decode_ps(self, seqs: int, total: int, spread: Spread | None) -> float:
        model = self._model
        if model.kv_latent_dim and self.decode is None:
            product = self._product
            read = model.kv_bytes_per_token_per_gpu(self._tp) * product.byte_ps
            computed = model.decode_pair_flops / self._tp * product.work_ps
            return model.attention_layers * self._prefill.part.t0_ps + total * max(read, computed)
        found = 0.0 if self.decode is None else self.decode.ends_ps(seqs, total, spread, 0)[0]
        if self.windowed is not None and model.window:
            total, spread = _within(model.window, self.windowed.tile, seqs, total, spread)
            found += self.windowed.ends_ps(seqs, total, spread, 0)[0]
        return found

    def beside_prompts_ps(self, seqs: int, total: int, spread: Spread | None) -> float | None:
        """Attention of decoding sequences in a step with prompts; None where prompts do not matter."""
        if not self._one_launch:
            return None
        found, flop_ps, model = 0.0, self._prefill.part.work_ps, self._model
        if self.decode is not None:
            alone = self.decode.ends_ps(seqs, total, spread, 0)[0]
            found += self.decode.beside_prompts_ps(alone, seqs, total, spread, flop_ps)
        if self.windowed is not None and model.window:
            total, spread = _within(model.window, self.windowed.tile, seqs, total, spread)
            alone = self.windowed.ends_ps(seqs, total, spread, 0)[0]
            found += self.windowed.beside_prompts_ps(alone, seqs, total, spread, flop_ps)
        return found

    def verifying_ps(self, seqs: int, drafts: int, total: int) -> float:
        """Operations of attention where each sequence has drafts beside its token, in all layers."""
        seen, share, window = float(total), self._windowed_share, self._model.window
        if share and window:
            seen = (1 - share) * total + share * min(total, seqs * window)
        return self._verify_ps * seen * (1 + drafts / seqs)

    def decode_outside(self, seqs: int) -> list[Place]:
        """Where attention of so many sequences lies outside, their contexts left out."""
        part = self.decode or self.windowed
        if part:
            return part.outside(seqs)
        return [LATENT] if self._model.kv_latent_dim else []

    def context_limits(self) -> tuple[float, float] | None:
        """The mean contexts that were measured, as far as they matter: a window does not grow further."""
        if self.decode is not None:
            return self.decode.limits["context_tokens"]
        if self.windowed is None or not self._model.window:
            return None
        low, high = self.windowed.limits["context_tokens"]
        return low, high if self._model.window > high else float("inf")

    def prefill(self, sequences: int, tokens: int, pairs: int) -> Priced:
        """Attention of the chunks of prompts in all layers; `pairs` of queries and keys see each other."""
        model, part = self._model, self._prefill.part
        if model.kv_latent_dim:
            work = pairs * model.prefill_pair_flops / self._tp
            place = LATENT if self.decode is None else LATENT_PROMPTS
            latent = Priced.of(model.attention_layers * part.t0_ps + work * part.work_ps, [place])
            return total([latent, self._states(0, tokens)]) if self._recurrent else latent
        chunks = sequences, tokens, pairs
        found = self._prompts.get(chunks)
        if found is None:
            if len(self._prompts) == PROMPTS_KEPT:
                self._prompts.clear()
            found = self._prompts[chunks] = self._prefill_of(sequences, tokens, pairs)
        return found

    def _prefill_of(self, sequences: int, tokens: int, pairs: int) -> Priced:
        """Layers that see everything, and windowed ones: no token of theirs sees more than the window."""
        found = [self._prefill.priced(sequences, tokens, pairs)] if self._full_prefill else []
        if self._windowed_prefill is not None and self._model.window:
            seen = min(pairs, tokens * self._model.window)
            found.append(self._windowed_prefill.priced(sequences, tokens, seen))
        if self._recurrent:
            found.append(self._states(0, tokens))
        return total(found)

    def _states(self, sequences: int, tokens: int) -> Priced:
        """Recurrent layers: states, read and written once a sequence and step; scans of prompts' tokens."""
        model, product = self._model, self._product
        layers, (flops, scanned) = model.recurrent_layers, model.scan_per_token(self._tp)
        ps = 2 * sequences * model.state_bytes_per_sequence(self._tp) * product.byte_ps
        ps += tokens * max(scanned * product.byte_ps, flops * product.work_ps)
        return Priced.of(ps + layers * product.t0_ps, [RECURRENT])

    # -- copies -------------------------------------------------------------------------------

    def copies(self, shape: StepShape) -> Priced:
        """Copies within the GPU, and of blocks from and to the host."""
        found = []
        if shape.copied_tokens:
            moved = 2 * shape.copied_tokens * self._kept * self._element
            found.append(self._by_bytes("block_copy", moved).times(self._model.layers))
        for way, blocks in (("to_gpu", shape.swapped_in_blocks), ("to_host", shape.swapped_out_blocks)):
            if blocks:
                found.append(self.block[way].times(blocks))
        return total(found)

    def _block(self, way: str) -> Priced:
        """Moving one block in all layers."""
        moved = self._block_size * self._kept * self._element / 2
        if way in self._by_size:
            each = self._by_bytes(way, moved)
        else:
            seconds = TRANSFER_LATENCY_S + moved / self._gpu.pcie_bytes_per_s
            each = Priced.of(seconds * PS_PER_S, [(f"copies {way.replace('_', ' the ')}", "", 0.0)])
        return each.times(2 * self._model.layers)

    # -- what the model is --------------------------------------------------------------------

    def _unmeasured_layers(self) -> str:
        """What makes its layers others than those that are measured."""
        model = self._model
        if model.active_parameters not in (None, model.parameters):
            return "mixture of experts"
        return "layers of unusual matrices"

    def limits(self, part: str) -> Mapping[str, tuple[float, float]]:
        """What was measured of a part: axis -> least and most."""
        if part in {"decode", "latent"}:
            found = self.decode or self.windowed
            return found.limits if found else {}
        if part == "prefill":
            return self._prefill.part.limits
        return self._limits[part] if part in self._limits else self._parts[part].limits


def in_precision(parts: Mapping[str, Any], name: str, *suffixes: str) -> str:
    """The first of a part's names in these precisions that the profile has; else its name in 16 bits."""
    return next((name + each for each in suffixes if name + each in parts), name)


def _within(
    window: int, tile: int, seqs: int, total: int, spread: Spread | None
) -> tuple[int, Spread | None]:
    """What a window sees of contexts: their sum, and how they differ."""
    if spread is not None:
        rounded = min(spread.rounded, -(-window // tile) * tile * seqs)
        spread = Spread(min(spread.longest, window), rounded)
    return min(total, window * seqs), spread
