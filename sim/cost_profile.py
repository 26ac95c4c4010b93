"""Analytic profiles: step times from a few published figures, held in sim/profiles/NAME.json.

With n prompt tokens, b sequences (prompts count too) and the constants of the profile:

    max(floor, n * prompt)      reading the weights, or the products of the prompts where they take longer
    + b * sequence              the host's work for each sequence; attention over the contexts included
    + contexts / B * block      what blocks of B < 16 tokens add to attention; nothing from 16 on
    + copies, swaps             2 * bytes / bandwidth; slots * what one takes at this block size

A variant reads the slope over sequences differently, to show how much hangs on that:

    NAME:context    it is all attention: in proportion to the contexts, from the mean context of that figure
    NAME:both       attention as the kernel figure has it comes on top

Linear in the contexts with an integer slope, so that a span is a `range`. Ignores that attention within a
prompt grows with its square, and the direction of a swap: a block in and a block out each take their mean.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from math import ceil
from typing import Any

from sim.catalog import model_named
from sim.config import Scenario
from sim.cost import CostModel, StepShape
from sim.errors import KvsimError, unknown

PS_PER_MS = 1_000_000_000
PS_PER_US = 1_000_000
VARIANTS = ("", "context", "both")


def profile_names() -> list[str]:
    """The analytic profiles that are built in."""
    files = (entry.name for entry in resources.files("sim.profiles").iterdir())
    names = sorted(name.removesuffix(".json") for name in files if name.endswith(".json"))
    return [name for name in names if _read(name).get("kind") == "analytic"]


def _read(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(
        resources.files("sim.profiles").joinpath(f"{name}.json").read_text(encoding="utf-8")
    )
    return found


class AnalyticProfile(CostModel):
    """The step times of a profile for one scenario.

    Parameters
    ----------
    name : str
        One of `profile_names()`.
    variant : str
        One of VARIANTS.
    scenario : Scenario
        Its model must be in the profile, split over as many GPUs as there.
    """

    def __init__(self, name: str, variant: str, scenario: Scenario) -> None:
        profile = _read(name)
        models, model = profile["models"], scenario.model
        if variant not in VARIANTS:
            raise unknown("cost variant", variant, list(VARIANTS[1:]))
        if model.name not in models:
            raise KvsimError(
                f"model must be one of {', '.join(models)} with cost {name}, which knows no other, "
                f"got {model.name}"
            )
        here, tp = models[model.name], scenario.tensor_parallel_size
        if tp != here["tensor_parallel_size"]:
            raise KvsimError(
                f"tensor_parallel_size must be {here['tensor_parallel_size']} for {model.name} "
                f"with cost {name}, got {tp}"
            )
        self.source = f"{profile['source']}; {model.name}{f', variant {variant}' if variant else ''}"
        self.profile = profile
        sequence_ps = profile["sequence_ms"] * PS_PER_MS
        prompt = profile["prompt"]
        share = model.parameters / tp / model_named(prompt["model"]).parameters
        self._floor_ps: int = round(here["floor_ms"] * PS_PER_MS)
        self._token_ps = (prompt["ms"] * PS_PER_MS - sequence_ps) / prompt["tokens"] * share

        layers_share = model.layers / tp  # of the attention kernels
        block_size = scenario.engine.block_size if scenario.engine.allocator == "paged" else None
        context_ps = 0.0
        if variant:
            context_ps = layers_share * profile["context_us"] * PS_PER_US
        if variant == "context":
            context_ps, sequence_ps = sequence_ps / profile["figure1_context"], 0.0
        if block_size and block_size < profile["block_size"]:
            more_blocks = 1 / block_size - 1 / profile["block_size"]  # per token
            context_ps += layers_share * profile["block_us"] * PS_PER_US * more_blocks
        self._sequence_ps: int = round(sequence_ps)
        self._context_ps: int = round(context_ps)

        gpu, kv_bytes = scenario.gpu, scenario.served_model.kv_bytes_per_token_per_gpu(tp)
        bandwidth = gpu.bandwidth_bytes_per_s * gpu.bandwidth_efficiency
        self._copy_ps = 2 * kv_bytes / bandwidth * 1e12
        swap = profile["swap"]
        share = kv_bytes / model_named(swap["model"]).kv_bytes_per_token
        sizes = swap["block_sizes"]
        column = sizes.index(min(block_size or sizes[-1], sizes[-1]))
        self._swap_ps: dict[str, float] = {
            way: swap[f"{way}_ms"][column] * PS_PER_MS * share / swap["tokens"] for way in ("in", "out")
        }

    def swap_ps(self, way: str, tokens: int) -> int:
        """The time of moving the blocks of so many slots `in` from the host, or `out` to it."""
        return round(tokens * self._swap_ps[way])

    def step_ps(self, shape: StepShape) -> int:
        """The sum above; a step that computes nothing only moves what it moves."""
        duration = shape.context_tokens * self._context_ps
        if shape.prefill_tokens or shape.decode_seqs:
            duration += max(self._floor_ps, ceil(shape.prefill_tokens * self._token_ps))
        duration += (shape.prefill_seqs + shape.decode_seqs) * self._sequence_ps
        if shape.copied_tokens:
            duration += round(shape.copied_tokens * self._copy_ps)
        moved = shape.swapped_in_tokens + shape.swapped_out_tokens
        if moved:
            duration += (self.swap_ps("in", moved) + self.swap_ps("out", moved)) // 2
        return max(duration, 1)

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """An arithmetic progression."""
        first = self.step_ps(StepShape(decode_seqs=decode_seqs, context_tokens=context_tokens))
        delta = self._context_ps * decode_seqs
        return range(first, first + steps * delta, delta) if delta else [first] * steps
