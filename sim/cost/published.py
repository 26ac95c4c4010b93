"""Analytic profiles: step times from a few published figures, in sim/profiles/NAME.json.

With n tokens in the step (prompt tokens, plus one per decoding sequence), b sequences (including prompts) and
the profile's constants:

    max(floor, n * token, bytes)   the longest of reading the weights, the products of all tokens, and swaps,
                                   which run beside them on their own stream
    + issue                        the host's work for swapped blocks: the smaller they are, the more
    + b * sequence                 the host's work per sequence; includes attention over the contexts
    + contexts / B * block         what blocks of B < 16 tokens add to attention; nothing from 16 on
    + copies                       2 * bytes / bandwidth

A variant interprets one figure differently, to show its influence:

    NAME:context    the slope over sequences is all attention: proportional to the contexts, from the mean
                    context of that figure
    NAME:both       attention from the kernel figure is added on top
    NAME:sharedN    N sequences of a request share the host's work of one
    NAME:copiedN    each decoding sequence is first copied from one of the N of its request, in whole blocks,
                    unless it is that one: a beam search without shared blocks
    NAME:waiting    the products wait for the swaps

Linear in the contexts with an integer slope, so that a span is a `range`. Ignores that attention within a
prompt grows with its square.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from math import ceil
from typing import Any

from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.models.catalog import model_named

PS_PER_MS = 1_000_000_000
PS_PER_US = 1_000_000
ELSEWHERE, OURS, SIMULATORS = "-vllm.json", "-triton.json", ("-osdi24.json", "-isca24.json")
"""Suffixes of the other profiles there: those measured elsewhere, those of `sim calibrate`, and those
of engines.py and dgx.py."""
VARIANTS = ("", "context", "both", "waiting")


def profile_names() -> list[str]:
    """The built-in analytic profiles."""
    files = (entry.name for entry in resources.files("kvsim.sim.profiles").iterdir())
    return sorted(
        name.removesuffix(".json")
        for name in files
        if name.endswith(".json") and not name.endswith((ELSEWHERE, OURS, *SIMULATORS))
    )


def analytic_profile(name: str) -> Mapping[str, Any]:
    """The content of the file of one of `profile_names()`."""
    return _read(name)


def _read(name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(
        resources.files("kvsim.sim.profiles").joinpath(f"{name}.json").read_text(encoding="utf-8")
    )
    return found


class AnalyticProfile(CostModel):
    """The step times of a profile for one deployment.

    Parameters
    ----------
    name : str
        One of `profile_names()`.
    variant : str
        One of VARIANTS.
    deployment : Deployment
        Its model must be in the profile, split over the same number of GPUs.
    """

    sixteen_bits = True

    @classmethod
    def of(cls, deployment: Deployment, argument: str) -> "AnalyticProfile":
        """The model for `NAME:VARIANT`."""
        return cls(deployment.cost.partition(":")[0], argument, deployment)

    def __init__(self, name: str, variant: str, deployment: Deployment) -> None:
        profile = _read(name)
        models, model = profile["models"], deployment.model
        sharing, copied = _several(variant, "shared"), _several(variant, "copied")
        if sharing == copied == 1 and variant not in (*VARIANTS, "shared1", "copied1"):
            raise unknown("cost variant", variant, [*VARIANTS[1:], "sharedN", "copiedN"])
        if model.name not in models:
            raise KvsimError(
                f"model must be one of {', '.join(models)} with cost {name}, which knows no other, "
                f"got {model.name}"
            )
        here, tp = models[model.name], deployment.tensor_parallel_size
        if tp != here["tensor_parallel_size"]:
            raise KvsimError(
                f"tensor_parallel_size must be {here['tensor_parallel_size']} for {model.name} "
                f"with cost {name}, got {tp}"
            )
        self.source = f"{profile['source']}; {model.name}{f', variant {variant}' if variant else ''}"
        self.profile = profile
        sequence_ps = profile["sequence_ms"] * PS_PER_MS / sharing
        prompt = profile["prompt"]
        share = model.parameters / tp / model_named(prompt["model"]).parameters
        self._floor_ps: int = round(here["floor_ms"] * PS_PER_MS)
        alone_ps = prompt["ms"] * PS_PER_MS - profile["sequence_ms"] * PS_PER_MS
        self._token_ps = alone_ps / prompt["tokens"] * share

        layers_share = model.layers / tp  # of the attention kernels
        has_blocks = deployment.allocator.has_blocks
        block_size = deployment.engine.block_size if has_blocks else None
        context_ps = 0.0
        if variant in ("context", "both"):
            context_ps = layers_share * profile["context_us"] * PS_PER_US
        if variant == "context":
            context_ps, sequence_ps = sequence_ps / profile["figure1_context"], 0.0
        if block_size and block_size < profile["block_size"]:
            more_blocks = 1 / block_size - 1 / profile["block_size"]  # per token
            context_ps += layers_share * profile["block_us"] * PS_PER_US * more_blocks

        gpu, kv_bytes = deployment.gpu, deployment.served_model.kv_bytes_per_token_per_gpu(tp)
        bandwidth = gpu.bandwidth_bytes_per_s * gpu.bandwidth_efficiency
        self._copy_ps = 2 * kv_bytes / bandwidth * 1e12
        context_ps += (1 - 1 / copied) * self._copy_ps
        sequence_ps += (1 - 1 / copied) * self._copy_ps * profile["block_size"] / 2  # of the last block
        self._sequence_ps: int = round(sequence_ps)
        self._context_ps: int = round(context_ps)
        self._waits = variant == "waiting"
        self._bytes_ps, self._issue_ps = self._swaps(block_size, kv_bytes)

    def _swaps(self, block_size: int | None, kv_bytes: int) -> tuple[dict[str, float], dict[str, float]]:
        """For each direction, the time of a slot's bytes and the time to issue its copy, from the swap table.

        The largest blocks of the table take hardly longer than their bytes; any excess of smaller blocks is
        the time to issue copies.
        """
        swap = self.profile["swap"]
        slots = swap["tokens"] * model_named(swap["model"]).kv_bytes_per_token / kv_bytes
        sizes = swap["block_sizes"]
        column = sizes.index(min(block_size or sizes[-1], sizes[-1]))
        table = {way: [ms * PS_PER_MS / slots for ms in swap[f"{way}_ms"]] for way in ("in", "out")}
        moving = {way: times[-1] for way, times in table.items()}
        return moving, {way: times[column] - times[-1] for way, times in table.items()}

    def swap_ps(self, way: str, tokens: int) -> int:
        """The time to move the blocks of `tokens` slots `in` from the host, or `out` to it, alone."""
        return round(tokens * (self._bytes_ps[way] + self._issue_ps[way]))

    def step_ps(self, shape: StepShape) -> int:
        """The sum described above; a step that computes nothing only moves blocks."""
        sequences, duration = shape.prefill_seqs + shape.decode_seqs, 0
        tokens = shape.prefill_tokens + shape.decode_seqs
        if tokens:
            duration = max(self._floor_ps, ceil(tokens * self._token_ps))
        coming, going = shape.swapped_in_tokens, shape.swapped_out_tokens
        if coming or going:
            moving = round(coming * self._bytes_ps["in"] + going * self._bytes_ps["out"])
            duration = duration + moving if self._waits else max(duration, moving)
            duration += round(coming * self._issue_ps["in"] + going * self._issue_ps["out"])
        duration += sequences * self._sequence_ps + shape.context_tokens * self._context_ps
        if shape.copied_tokens:
            duration += round(shape.copied_tokens * self._copy_ps)
        return max(duration, 1)

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """An arithmetic progression."""
        first = self.step_ps(StepShape(decode_seqs=decode_seqs, context_tokens=context_tokens))
        delta = self._context_ps * decode_seqs
        return range(first, first + steps * delta, delta) if delta else [first] * steps


def _several(variant: str, name: str) -> int:
    """The N of `sharedN` or `copiedN`; 1 for every other variant."""
    count = variant.removeprefix(name)
    return int(count) if count != variant and count.isdecimal() and int(count) else 1
