"""What a step of a model is made of, priced by a calibrated profile, as one of the `tp` GPUs has it.

    tokens(n)        norms, QKV, rotary, KV write, out, up and gate, activation, down, 2 all-reduces a layer
    rows(m)          LM head and sampling of m rows
    decode, prefill  attention in all layers
    copies           copy-on-write; blocks from and to the host: one copy for keys, one for values, a layer

Beside its price each part tells on which axes it lies outside what was measured. What no calibration measures
is named once, in `never_measured`, and priced so: layers of experts, or of weights that have not 16 bits, by
the form of matrix products, all experts read; multi-head latent attention by the bandwidth of the products
and their peak; all-reduces and copies to and from the host, if this profile has none, as in the roofline.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sim.config import ModelSpec, Scenario
from sim.cost import ALL_REDUCE_LATENCY_S, TRANSFER_LATENCY_S, StepShape
from sim.decode_part import DecodePart
from sim.profile_parts import Along, Chunks, Part, Place, Priced, prefill_features, product_features
from sim.workload import PS_PER_S

BLOCK_SIZE = 16
"""Of those that keep keys and values in one piece: what the profile's main tables were measured with."""
PROMPTS_KEPT = 1 << 16
ATTENTION = ("decode", "prefill")
PRODUCTS = ("product", "lm_head")


class Product(NamedTuple):
    """Weights of a known shape, to be multiplied with any number of tokens."""

    constants: Mapping[str, Any]
    inputs: int
    outputs: int
    along: Along


class StepParts:
    """The parts of one scenario's steps.

    Attributes
    ----------
    decode : DecodePart or None
        Of layers that see everything; None where there are none, or with multi-head latent attention.
    windowed : DecodePart or None
        Of those with a sliding window.
    never_measured : tuple of str
        What every step has that no measurement stands behind.
    """

    def __init__(self, scenario: Scenario, parts: Mapping[str, Any]) -> None:
        model, tp, engine = scenario.served_model, scenario.tensor_parallel_size, scenario.engine
        self._model, self._tp, self._gpu = model, tp, scenario.gpu
        self._heads, self._kv_heads = model.heads // tp, -(-model.kv_heads // tp)
        self._element = model.kv_dtype_bytes or model.dtype_bytes
        self._block_size = engine.block_size if engine.allocator == "paged" else BLOCK_SIZE
        self._parts = {name: Part(name, part) for name, part in parts.items() if name not in ATTENTION}
        self._by_size = {
            name: Along(part, "bytes", **({"gpus": tp} if name == "all_reduce" else {}))
            for name, part in self._parts.items()
            if name not in PRODUCTS
        }
        group = self._heads // self._kv_heads
        fixed = {"group": group, "head_dim": model.head_dim, "block_size": self._block_size}
        self._prefill = Part("prefill", parts["prefill"], **fixed)
        self._group = group
        self.tile = 0
        self.decode = self._decode(parts, model.layers - model.window_layers, fixed)
        self.windowed = self._decode(parts, model.window_layers, fixed)
        self.never_measured = self._never_measured()
        self.block_ps = {way: self._block_ps(way) for way in ("to_gpu", "to_host")}
        self._products = self._layer_products()
        self._head = self._product("lm_head", model.hidden_size, -(-model.vocab_size // tp))
        self._tokens: dict[int, Priced] = {}
        self._rows: dict[int, Priced] = {}
        self._chunks: dict[int, Along] = {}
        self._prompts: dict[Chunks, float] = {}

    def _decode(self, parts: Mapping[str, Any], layers: int, fixed: Mapping[str, int]) -> DecodePart | None:
        if not layers or self._model.kv_latent_dim:
            return None
        return DecodePart(
            parts["decode"], layers=layers, kv_heads=self._kv_heads, element_bytes=self._element, **fixed
        )

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
            found = self._rows[m] = _sum([_product_priced(self._head, m), sampled] if m else [])
        return found

    def _through_layers(self, n: int) -> Priced:
        model, head_dim = self._model, self._model.head_dim
        norm = self._by_bytes("elementwise", 8 * n * model.hidden_size)
        layer = [
            *(norm, norm),
            *(_product_priced(product, n) for product in self._products or ()),
            self._by_bytes("elementwise", 4 * n * (self._heads + self._kv_heads) * head_dim),
            self._by_bytes("elementwise", 6 * n * (model.intermediate_size // self._tp)),
            self._by_bytes("kv_write", 2 * n * self._kv_heads * head_dim * (2 + self._element)),
        ]
        if self._tp > 1:
            layer += [self._all_reduce(n)] * 2
        if self._products is None:
            layer.append((self._unmeasured_products(n), ()))
        each, places = _sum(layer)
        return model.layers * each + norm[0], places

    def _by_bytes(self, name: str, moved: float) -> Priced:
        return self._by_size[name].priced(moved, 0.0, moved)

    def _product(self, name: str, inputs: int, outputs: int) -> Product:
        part = self._parts[name]
        return Product(part.constants, inputs, outputs, Along(part, "tokens", inputs=inputs, outputs=outputs))

    def _layer_products(self) -> list[Product] | None:
        """The four matrix products of a layer; None where it has others."""
        model = self._model
        if not self._plain():
            return None
        hidden, attention = model.hidden_size, self._heads * model.head_dim
        qkv, inner = attention + 2 * self._kv_heads * model.head_dim, model.intermediate_size // self._tp
        upward = (_matrices(model) - 1) * inner
        shapes = ((hidden, qkv), (attention, hidden), (hidden, upward), (inner, hidden))
        return [self._product("product", *shape) for shape in shapes]

    def _unmeasured_products(self, n: int) -> float:
        """Those of other layers, by the form: all weights read, the chosen ones computed with."""
        model, form, share = self._model, self._parts["product"], 1 / (self._model.layers * self._tp)
        idle = model.parameters - (model.active_parameters or model.parameters)  # experts not chosen
        moved = model.body_parameters * model.dtype_bytes * share
        return 3 * form.t0_ps + form.form_ps(moved, 2 * (model.body_parameters - idle) * share * n)

    def _all_reduce(self, n: int) -> Priced:
        model, tp, gpu = self._model, self._tp, self._gpu
        if "all_reduce" in self._by_size:
            size = 2 * n * model.hidden_size
            return self._by_size["all_reduce"].priced(2 * (tp - 1) / tp * size, 0.0, size)
        moved = 2 * (tp - 1) / tp * n * model.hidden_size * model.dtype_bytes
        seconds = ALL_REDUCE_LATENCY_S + moved / (gpu.link_bytes_per_s or gpu.pcie_bytes_per_s)
        return seconds * PS_PER_S, ()

    # -- attention ----------------------------------------------------------------------------

    def decode_ps(self, shape: StepShape) -> float:
        """Attention of the decoding sequences in all layers."""
        seqs, total, model = shape.decode_seqs, shape.context_tokens, self._model
        if not seqs:
            return 0.0
        if model.kv_latent_dim:
            product = self._parts["product"]
            read = model.kv_bytes_per_token_per_gpu(self._tp) * product.byte_ps
            computed = model.decode_pair_flops / self._tp * product.work_ps
            return model.layers * self._prefill.t0_ps + total * max(read, computed)
        longest, rounded = shape.longest_context, shape.rounded_context
        found = 0.0 if self.decode is None else self.decode.at(seqs, total, longest, rounded)
        if self.windowed is not None and model.window:
            window, tile = model.window, self.windowed.tile
            rounded = min(rounded, -(-window // tile) * tile * seqs)
            found += self.windowed.at(seqs, min(total, window * seqs), min(longest, window), rounded)
        return found

    def decode_outside(self, seqs: int) -> list[Place]:
        """Where attention of so many sequences lies outside, their contexts left out."""
        part = self.decode or self.windowed
        return part.outside(seqs) if part and seqs else []

    def context_limits(self) -> tuple[float, float] | None:
        """The mean contexts that were measured, as far as they matter: a window does not grow further."""
        if self.decode is not None:
            return self.decode.limits["context_tokens"]
        if self.windowed is None or not self._model.window:
            return None
        low, high = self.windowed.limits["context_tokens"]
        return low, high if self._model.window > high else float("inf")

    def prefill_ps(self, shape: StepShape) -> float:
        """Attention of the prompts in all layers."""
        if not shape.prefill_tokens:
            return 0.0
        model, part = self._model, self._prefill
        if model.kv_latent_dim:
            work = shape.prefill_pairs * model.prefill_pair_flops / self._tp
            return model.layers * part.t0_ps + work * part.work_ps
        chunks = _chunks(shape)
        known = self._prompts.get(chunks)
        if known is None:
            if len(self._prompts) == PROMPTS_KEPT:
                self._prompts.clear()
            known = self._prompts[chunks] = self._chunks_ps(chunks)
        return known

    def _chunks_ps(self, chunks: Chunks) -> float:
        model, part = self._model, self._prefill
        along = self._chunks.get(chunks.tokens)
        if along is None:
            along = self._chunks[chunks.tokens] = Along(part, "prefix_tokens", tokens=chunks.tokens)
        moved, work = prefill_features(
            part.constants,
            chunks,
            kv_heads=self._kv_heads,
            group=self._group,
            head_dim=model.head_dim,
            element_bytes=self._element,
        )
        return model.layers * along.priced(moved, work, chunks.place["prefix_tokens"])[0]

    def prefill_outside(self, shape: StepShape) -> list[Place]:
        """Where attention of the prompts lies outside."""
        if not shape.prefill_tokens or self._model.kv_latent_dim:
            return []
        return [*self._prefill.outside_always, *self._prefill.outside(_chunks(shape).place)]

    # -- copies -------------------------------------------------------------------------------

    def copies(self, shape: StepShape) -> Priced:
        """Copies within the GPU, and of blocks from and to the host."""
        total = 0.0
        places: list[Place] = []
        if shape.copied_tokens:
            moved = 4 * shape.copied_tokens * self._kv_heads * self._model.head_dim * self._element
            each, outside = self._by_bytes("block_copy", moved)
            total += self._model.layers * each
            places += outside
        for way, blocks in (("to_gpu", shape.swapped_in_blocks), ("to_host", shape.swapped_out_blocks)):
            if blocks:
                each, outside = self.block_ps[way]
                total += blocks * each
                places += outside
        return total, tuple(places)

    def _block_ps(self, way: str) -> Priced:
        """Moving one block in all layers."""
        numbers = (self._model.kv_latent_dim or 0) / 2 or self._kv_heads * self._model.head_dim
        moved = self._block_size * numbers * self._element
        if way in self._by_size:
            each, places = self._by_bytes(way, moved)
        else:
            each = (TRANSFER_LATENCY_S + moved / self._gpu.pcie_bytes_per_s) * PS_PER_S
            places = ((f"copies {way.replace('_', ' the ')}", "", 0.0),)
        return 2 * self._model.layers * each, places

    # -- what the model is --------------------------------------------------------------------

    def _plain(self) -> bool:
        """Whether a layer is four dense products of 16 bits."""
        model = self._model
        dense = model.active_parameters in (None, model.parameters) and not model.kv_latent_dim
        return dense and model.dtype_bytes == 2 and _matrices(model) in (2, 3)

    def _never_measured(self) -> tuple[str, ...]:
        model = self._model
        found = []
        if model.active_parameters not in (None, model.parameters):
            found.append("mixture of experts")
        elif model.dtype_bytes != 2:
            found.append(f"weights of {8 * model.dtype_bytes} bits")
        elif not model.kv_latent_dim and not self._plain():
            found.append("layers of unusual matrices")
        if model.kv_latent_dim:
            found.append("multi-head latent attention")
        if self._tp > 1 and "all_reduce" not in self._parts:
            found.append(f"all-reduce of {self._tp} GPUs")
        return tuple(found)

    def limits(self, part: str) -> Mapping[str, tuple[float, float]]:
        """What was measured of a part: axis -> least and most."""
        if part == "decode":
            found = self.decode or self.windowed
            return found.limits if found else {}
        return self._prefill.limits if part == "prefill" else self._parts[part].limits


def _product_priced(product: Product, tokens: int) -> Priced:
    moved, work = product_features(product.constants, tokens, product.inputs, product.outputs)
    return product.along.priced(moved, work, tokens)


def _sum(parts: list[Priced]) -> Priced:
    places = dict.fromkeys(place for _, places in parts for place in places)
    return sum(ps for ps, _ in parts), tuple(places)


def _matrices(model: ModelSpec) -> int:
    """Matrices of hidden x intermediate in a layer: 2, or 3 with a gate; more with experts."""
    attention = 2 * model.hidden_size * model.head_dim * (model.heads + model.kv_heads)
    rest = model.body_parameters / model.layers - attention
    return round(rest / (model.hidden_size * model.intermediate_size))


def _chunks(shape: StepShape) -> Chunks:
    return Chunks(shape.prefill_seqs, shape.prefill_tokens, shape.prefill_pairs)
