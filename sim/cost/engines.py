"""Fitted step times of the engines in DistServe's evaluation, from its simulator: `a100-80gb-osdi24:ENGINE`.

    steps with prompts     a + b * tokens + c * sum of the squares of the prompts
    steps of decodes       a + b * contexts + c * sequences; other constants from 95 sequences on
    each step              2 ms more, and 0.1 us per token and context token: the host's work

ENGINE is `distserve` or `vllm`; the constants are for a model split over a given number of GPUs. OPT-175B's
are those of OPT-66B, scaled by parameters, and attention by the bytes per token: an assumption. A prompt with
one token left to compute is a decode. Sequences that decode beside longer prompts count as tokens, and their
contexts as in a step of decodes; neither engine mixes the two. Copies inside the GPU and swaps are ignored,
as in the simulator.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import repeat
from typing import Any, ClassVar

from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import model_named

NAME = "a100-80gb-osdi24"
PS_PER_MS = 1_000_000_000


class EngineProfile(CostModel):
    """The step times of one engine for one deployment.

    Parameters
    ----------
    engine : str
        `distserve` or `vllm`.
    deployment : Deployment
        Its model must be in the profile, split over the same number of GPUs.
    """

    batches: ClassVar[str] = "each"
    sixteen_bits = True

    @classmethod
    def of(cls, deployment: Deployment, argument: str) -> "EngineProfile":
        """The model for `NAME:ENGINE`."""
        return cls(argument, deployment)

    def __init__(self, engine: str, deployment: Deployment) -> None:
        profile = _read()
        engines, model, tp = profile["engines"], deployment.model.name, deployment.tensor_parallel_size
        if engine not in engines:
            known_words = " or ".join(f"{NAME}:{each}" for each in engines)
            raise KvsimError(f"cost must be {known_words}, got {NAME}{':' * bool(engine)}{engine}")
        known = profile["scaled"].get(model, model)
        if known not in engines[engine]:
            names = ", ".join([*engines[engine], *profile["scaled"]])
            raise KvsimError(
                f"model must be one of {names} with cost {NAME}, which knows no other, got {model}"
            )
        splits = engines[engine][known]
        if str(tp) not in splits:
            raise KvsimError(
                f"tensor_parallel_size must be one of {', '.join(splits)} for {model} "
                f"with cost {NAME}, got {tp}"
            )
        longest, given = model_named(known).max_model_len, deployment.engine.max_model_len
        if given is not None and given > longest:
            raise KvsimError(
                f"max_model_len must be at most {longest:,} with cost {NAME}, which knows no longer prompts, "
                f"got {given:,}"
            )
        here = splits[str(tp)]
        self.source = f"{profile['source']}; {engine}, {model}"
        self._many: int = profile["many"]
        base, self._token_ps = _ps(profile["overhead_ms"])
        like = model_named(known)
        products = deployment.model.parameters / like.parameters
        attention = deployment.model.kv_bytes_per_token / like.kv_bytes_per_token
        alone, self._prompt_ps, self._square_ps = _ps(here["prompt_ms"], products, products, attention)
        self._alone_ps = alone + base
        self._few, self._more = (
            (first + base, context + self._token_ps, sequence)
            for first, context, sequence in (
                _ps(here[which], products, attention, products) for which in ("few_ms", "many_ms")
            )
        )

    def step_ps(self, shape: StepShape) -> int:
        """The sum described above; a step that computes nothing takes the minimum."""
        decoding, contexts = shape.decode_seqs, shape.context_tokens
        one_each = shape.prefill_tokens == shape.prefill_seqs
        if one_each:
            decoding, contexts = decoding + shape.prefill_seqs, contexts + shape.prefill_pairs
        first, context_ps, sequence_ps = self._few if decoding < self._many else self._more
        if one_each:
            return first + context_ps * contexts + sequence_ps * decoding if decoding else 1
        tokens = shape.prefill_tokens + decoding
        squares = max(2 * shape.prefill_pairs - shape.prefill_tokens, 0)
        own = self._alone_ps + (self._prompt_ps + self._token_ps) * tokens + self._square_ps * squares
        return own + context_ps * contexts

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """An arithmetic progression."""
        first = self.step_ps(StepShape(decode_seqs=decode_seqs, context_tokens=context_tokens))
        delta = (self._few if decode_seqs < self._many else self._more)[1] * decode_seqs
        return range(first, first + steps * delta, delta) if delta else [first] * steps


def _read() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(
        resources.files("kvsim.sim.profiles").joinpath(f"{NAME}.json").read_text(encoding="utf-8")
    )
    return found


def _ps(times_ms: Sequence[float], *factors: float) -> list[int]:
    """The sum of these times, each multiplied by its factor."""
    given = factors or repeat(1.0)
    return [round(each * factor * PS_PER_MS) for each, factor in zip(times_ms, given, strict=False)]
