"""Attention of all layers on one GPU, priced by a calibrated profile.

Full-attention layers and sliding-window layers are priced separately, as are decoding sequences and the
chunks of prompts. A profile may have a part for each precision of the cache (`decode_fp8`).

Anything the profile lacks counts as outside. Without a part of its own, decoding over latents (MLA) is priced
by the bandwidth and the peak of the matrix products; prompts of such models are always priced by their pairs,
at the rate of prefill attention. Recurrent layers, which replace attention, are priced by bandwidth and peak,
with states and scans as in the roofline.
"""

from collections.abc import Mapping

from kvsim.sim.cost.calibrated.decode import DecodePart, over_heads, over_latents
from kvsim.sim.cost.calibrated.measured import Measured, Shard
from kvsim.sim.cost.calibrated.one_launch import OneLaunch
from kvsim.sim.cost.calibrated.parts import Part, Place, Priced, total
from kvsim.sim.cost.calibrated.prefill import PrefillPart
from kvsim.sim.cost.step_cost import Spread

LATENT = ("multi-head latent attention", "", 0.0)
LATENT_PROMPTS = ("prompts of multi-head latent attention", "", 0.0)
RECURRENT = ("recurrent layers", "", 0.0)
LEAST_HEADS = 16
"""Query heads per program over latents; fewer take as long (kernels/calibration/form.py)."""
PROMPTS_KEPT = 1 << 16


class Attention:
    """Attention in all layers.

    Attributes
    ----------
    decode : DecodePart or None
        Full-attention layers, over keys and values or latents; None if there are none, or if latents were not
        measured.
    windowed : DecodePart or None
        Layers with a sliding window.
    prompts, windowed_prompts : PrefillPart
        The chunks of prompts; the first exists even if all layers of the model have a window.
    """

    def __init__(self, shard: Shard, measured: Measured, mixes_launches: bool) -> None:
        self._shard, self._measured, model = shard, measured, shard.model
        self._full = full = model.attention_layers - model.window_layers
        geometry = {
            "kv_heads": shard.kv_heads,
            "group": shard.heads // shard.kv_heads,
            "head_dim": model.head_dim,
            "element_bytes": shard.element_bytes,
            "block_size": shard.block_size,
        }
        self._in_bytes = "_fp8" if shard.element_bytes == 1 else ""
        part = measured.raw(measured.in_precision("prefill", self._in_bytes))
        self.prompts = PrefillPart(part, layers=full or model.layers, sinks=model.sinks, **geometry)
        self.windowed_prompts = (
            PrefillPart(part, layers=model.window_layers, **geometry) if model.window_layers else None
        )
        self.decode, self.windowed = (
            self._decode_part(layers, geometry) for layers in (full, model.window_layers)
        )
        self._one_launch = self._launch_of_both(geometry) if mixes_launches else None
        self._verify_ps = self.prompts.part.work_ps * model.decode_pair_flops / shard.tp
        self._windowed_share = model.window_layers / (model.attention_layers or 1)
        self._known: dict[tuple[int, int, int], Priced] = {}  # whole prompts of equal length recur

    def _decode_part(self, layers: int, geometry: Mapping[str, int]) -> DecodePart | None:
        shard, measured, most = self._shard, self._measured, self._shard.most_bytes_per_s
        width = shard.model.kv_latent_dim
        if not layers or (width and "latent" not in measured):
            return None
        if width:
            fixed = {"block_size": shard.block_size, "element_bytes": shard.element_bytes, "width": width}
            part = Part("latent", measured.raw("latent"), **fixed, heads=max(shard.heads, LEAST_HEADS))
            kernel = over_latents(part, shard.heads, width, shard.element_bytes)
        else:
            name = measured.in_precision("decode", self._in_bytes)
            fixed = {axis: size for axis, size in geometry.items() if axis != "kv_heads"}
            part = Part("decode", measured.raw(name), **fixed)
            kernel = over_heads(part, shard.kv_heads, shard.model.head_dim, shard.element_bytes)
        return DecodePart(part, kernel, layers=layers, most_bytes_per_s=most)

    def _launch_of_both(self, geometry: Mapping[str, int]) -> OneLaunch | None:
        """The kernel that takes prompts and decoding sequences in one launch, if the profile is of one."""
        tiled = self.decode or self.windowed
        constants = tiled.part.constants if tiled else {}
        if not constants.get("l2_bytes"):
            return None
        return OneLaunch(
            constants["l2_bytes"],
            constants.get("multiprocessors", 1),
            geometry["kv_heads"] * geometry["group"],
            geometry["group"],
            geometry["head_dim"],
            geometry["element_bytes"],
            self.prompts.part.work_ps,
        )

    # -- decoding sequences -------------------------------------------------------------------

    def decode_ends_ps(self, seqs: int, total: int, spread: Spread | None, steps: int) -> tuple[float, float]:
        """Decode attention of a step, and of the step `steps` steps later."""
        if self.decode is not None and self.windowed is None:
            return self.decode.ends_ps(seqs, total, spread, steps)
        later = spread and spread.later(steps, seqs)
        return self._decode_ps(seqs, total, spread), self._decode_ps(seqs, total + steps * seqs, later)

    def _decode_ps(self, seqs: int, total: int, spread: Spread | None) -> float:
        model, tp = self._shard.model, self._shard.tp
        if model.kv_latent_dim and self.decode is None:
            product = self._measured.product
            read = model.kv_bytes_per_token_per_gpu(tp) * product.byte_ps
            computed = model.decode_pair_flops / tp * product.work_ps
            return model.attention_layers * self.prompts.part.t0_ps + total * max(read, computed)
        found = 0.0 if self.decode is None else self.decode.ends_ps(seqs, total, spread, 0)[0]
        if self.windowed is not None and model.window:
            total, spread = _within(model.window, self.windowed.tile, seqs, total, spread)
            found += self.windowed.ends_ps(seqs, total, spread, 0)[0]
        return found

    def beside_prompts_ps(self, seqs: int, total: int, spread: Spread | None) -> float | None:
        """Decode attention in a step with prompts; None if prompts make no difference."""
        launch, model = self._one_launch, self._shard.model
        if launch is None:
            return None
        found = 0.0
        if self.decode is not None:
            alone = self.decode.ends_ps(seqs, total, spread, 0)[0]
            found += launch.decode_ps(alone, seqs, total, spread, self._full)
        if self.windowed is not None and model.window:
            total, spread = _within(model.window, self.windowed.tile, seqs, total, spread)
            alone = self.windowed.ends_ps(seqs, total, spread, 0)[0]
            found += launch.decode_ps(alone, seqs, total, spread, model.window_layers)
        return found

    def verifying_ps(self, seqs: int, drafts: int, total: int) -> float:
        """Time for the operations if each sequence has drafts besides its token."""
        seen, share, window = float(total), self._windowed_share, self._shard.model.window
        if share and window:
            seen = (1 - share) * total + share * min(total, seqs * window)
        return self._verify_ps * seen * (1 + drafts / seqs)

    def decode_outside(self, seqs: int) -> list[Place]:
        """Axes on which `seqs` decoding sequences lie outside, apart from their contexts."""
        part = self.decode or self.windowed
        if part:
            return part.outside(seqs)
        return [LATENT] if self._shard.model.kv_latent_dim else []

    def context_limits(self) -> tuple[float, float] | None:
        """The range of mean contexts that were measured; a window stops growing at its size."""
        if self.decode is not None:
            return self.decode.part.limits["context_tokens"]
        window = self._shard.model.window
        if self.windowed is None or not window:
            return None
        low, high = self.windowed.part.limits["context_tokens"]
        return low, high if window > high else float("inf")

    # -- prompts ------------------------------------------------------------------------------

    def prefill(self, sequences: int, tokens: int, pairs: int) -> Priced:
        """The chunks of prompts; `pairs` counts the (query, key) pairs that attend."""
        chunks = sequences, tokens, pairs
        found = self._known.get(chunks)
        if found is None:
            if len(self._known) == PROMPTS_KEPT:
                self._known.clear()
            found = self._known[chunks] = total(self._prefill_of(sequences, tokens, pairs))
        return found

    def _prefill_of(self, sequences: int, tokens: int, pairs: int) -> list[Priced]:
        """Full-attention layers, and windowed ones, whose tokens see no more than the window."""
        model, part, found = self._shard.model, self.prompts.part, []
        if model.kv_latent_dim:
            work = pairs * model.prefill_pair_flops / self._shard.tp
            place = LATENT if self.decode is None else LATENT_PROMPTS
            found.append(Priced.of(model.attention_layers * part.t0_ps + work * part.work_ps, [place]))
        elif self._full:
            found.append(self.prompts.priced(sequences, tokens, pairs))
        if self.windowed_prompts is not None and model.window and not model.kv_latent_dim:
            seen = min(pairs, tokens * model.window)
            found.append(self.windowed_prompts.priced(sequences, tokens, seen))
        return found + self.states(0, tokens)

    def states(self, sequences: int, tokens: int) -> list[Priced]:
        """Recurrent layers: states, read and written once per sequence and step, and scans over prompts."""
        model, tp, product = self._shard.model, self._shard.tp, self._measured.product
        if not model.recurrent_layers:
            return []
        flops, scanned = model.scan_per_token(tp)
        ps = 2 * sequences * model.state_bytes_per_sequence(tp) * product.byte_ps
        ps += tokens * max(scanned * product.byte_ps, flops * product.work_ps)
        return [Priced.of(ps + model.recurrent_layers * product.t0_ps, [RECURRENT])]

    def limits(self, part: str) -> Mapping[str, tuple[float, float]]:
        """The measured range of "prefill", "decode" or "latent": axis -> (least, most)."""
        if part == "prefill":
            return self.prompts.part.limits
        found = self.decode or self.windowed
        return found.part.limits if found else {}


def _within(
    window: int, tile: int, seqs: int, total: int, spread: Spread | None
) -> tuple[int, Spread | None]:
    """The part of the contexts inside a window: their sum, and how they differ."""
    if spread is not None:
        rounded = min(spread.rounded, -(-window // tile) * tile * seqs)
        spread = Spread(min(spread.longest, window), rounded)
    return min(total, window * seqs), spread
