"""The parts of a step on one of the `tp` GPUs, priced by a calibrated profile.

    tokens(n)   everything n tokens need in the layers besides attention (body.py)
    rows(m)     LM head and sampling of m rows
    attention   of decoding sequences and prompts, in all layers (attention.py)
    copies      copy-on-write; blocks from and to the host: one copy for keys, one for values, per layer

A profile may have a part for each precision (`product_fp8`, `decode_fp8`, `experts_nvfp4`). Each part also
reports how much of its price lies outside what was measured, and on which axes; anything the profile lacks is
entirely outside. Missing all-reduces and copies to and from the host are priced as in the roofline.
"""

from collections.abc import Mapping
from typing import Any

from kvsim.sim.cost.calibrated.attention import Attention
from kvsim.sim.cost.calibrated.body import Body
from kvsim.sim.cost.calibrated.measured import Measured, Shard
from kvsim.sim.cost.calibrated.parts import Priced, Product, total
from kvsim.sim.cost.host import PLAIN_PROMPTS, engine_of
from kvsim.sim.cost.options import CalibratedOptions
from kvsim.sim.cost.roofline import TRANSFER_LATENCY_S
from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.option import taken
from kvsim.sim.workload import PS_PER_S


class StepParts:
    """The parts of one deployment's steps.

    Attributes
    ----------
    body : Body
    attention : Attention
    block : mapping of str to Priced
        "to_gpu", "to_host": the price of moving one block in all layers.
    """

    def __init__(self, deployment: Deployment, parts: Mapping[str, Any]) -> None:
        self._shard = shard = Shard.of(deployment)
        self._measured = measured = Measured(parts)
        chosen = taken(CalibratedOptions, deployment.options)
        self.body = Body(shard, measured, chosen, deployment.enable_expert_parallel)
        self.attention = Attention(shard, measured, engine_of(deployment) not in PLAIN_PROMPTS)
        self.block = {way: self._block(way) for way in ("to_gpu", "to_host")}
        model, most = shard.model, shard.most_bytes_per_s
        head = measured.part("lm_head") if "lm_head" in measured else measured.product
        self._head = Product(head, model.hidden_size, -(-model.vocab_size // shard.tp), most)
        self._rows: dict[int, Priced] = {}

    def tokens(self, n: int) -> Priced:
        """Everything for n tokens except attention and logits."""
        return self.body.tokens(n)

    def rows(self, m: int) -> Priced:
        """Logits and sampling for m sequences; cached, as batch sizes recur."""
        found = self._rows.get(m)
        if found is None:
            sampled = self._measured.by_bytes("sampling", 2 * m * self._shard.model.vocab_size)
            priced = [self._head.priced(m), sampled, *self.attention.states(m, 0)] if m else []
            found = self._rows[m] = total(priced)
        return found

    # -- copies -------------------------------------------------------------------------------

    def copies(self, shape: StepShape) -> Priced:
        """Copies within the GPU, and of blocks from and to the host."""
        found, shard = [], self._shard
        if shape.copied_tokens:
            moved = 2 * shape.copied_tokens * shard.kept * shard.element_bytes
            found.append(self._measured.by_bytes("block_copy", moved).times(shard.model.layers))
        for way, blocks in (("to_gpu", shape.swapped_in_blocks), ("to_host", shape.swapped_out_blocks)):
            if blocks:
                found.append(self.block[way].times(blocks))
        return total(found)

    def _block(self, way: str) -> Priced:
        """Moving one block in all layers."""
        shard = self._shard
        moved = shard.block_size * shard.kept * shard.element_bytes / 2
        if self._measured.moves(way):
            each = self._measured.by_bytes(way, moved)
        else:
            seconds = TRANSFER_LATENCY_S + moved / shard.gpu.pcie_bytes_per_s
            each = Priced.of(seconds * PS_PER_S, [(f"copies {way.replace('_', ' the ')}", "", 0.0)])
        return each.times(2 * shard.model.layers)

    def limits(self, part: str) -> Mapping[str, tuple[float, float]]:
        """The measured range of a part: axis -> (least, most)."""
        if part in {"prefill", "decode", "latent"}:
            return self.attention.limits(part)
        return self._measured.limits(part)
