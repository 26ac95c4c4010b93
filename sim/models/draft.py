"""The draft of a model, which proposes tokens, as a small model with its own geometry.

    eagle, eagle3   one layer like the model's, dense; a matrix that joins hidden states and embeddings
                    (eagle3: of three layers, queries and keys read both; an output matrix over 32,000 tokens)
    mtp             one layer of the model itself, including experts, and such a matrix
    draft_model     any other model

EAGLE-3's for Llama-3.1-8B thus has 425 M parameters, as published (yuhuili/EAGLE3-LLaMA3.1-Instruct-8B).
Embeddings, and output matrices except eagle3's, are those of the model: they are read by both, but stored
once.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from kvsim.sim.models.spec import ModelSpec

EAGLE3_VOCABULARY: Final = 32_000
DENSE_WIDTH: Final = 4
"""Width of a draft's dense layer, in hidden sizes, if the model is a mixture of experts."""


class Draft(NamedTuple):
    """A draft model or head.

    Attributes
    ----------
    model : ModelSpec
        The computation of one pass, including the output matrix.
    weight_bytes : int
        Additional memory: all modules, without anything that the model already holds.
    kv_layers : int
        Layers that cache keys and values of every token, over all modules.
    """

    model: ModelSpec
    weight_bytes: int
    kv_layers: int

    def kv_bytes_per_token(self, tensor_parallel_size: int) -> int:
        """Bytes per token on each GPU, in all layers."""
        each = self.model.kv_bytes_per_token_per_gpu(tensor_parallel_size)
        return each * self.kv_layers // max(self.model.caching_layers, 1)


def eagle_of(model: ModelSpec, third: bool) -> Draft:
    """The head of EAGLE or EAGLE-3."""
    hidden = model.hidden_size
    inner = DENSE_WIDTH * hidden if model.experts else model.intermediate_size
    head_dim = hidden // model.heads if model.kv_latent_dim else model.head_dim
    attention, kept = model.heads * head_dim, 2 * model.kv_heads * head_dim
    joined = 2 if third else 1  # hidden state and embedding, concatenated
    body = joined * hidden * (attention + kept) + attention * hidden + 3 * hidden * inner
    body += (3 if third else 2) * hidden * hidden
    vocabulary = min(EAGLE3_VOCABULARY, model.vocab_size) if third else model.vocab_size
    head = vocabulary * hidden
    spec = _one_layer(model, "eagle3" if third else "eagle", body + head, vocabulary)
    spec = replace(
        spec,
        intermediate_size=inner,
        head_dim=head_dim,
        kv_latent_dim=None,
        kv_rope_dim=None,
        active_parameters=None,
        experts=0,
        experts_per_token=0,
        expert_parameters=0,
    )
    return Draft(spec, (body + head * third) * model.dtype_bytes, 1)


def mtp_of(model: ModelSpec, modules: int) -> Draft:
    """The modules for multi-token prediction."""
    hidden, head, layers = model.hidden_size, model.head_parameters, model.layers
    experts = model.expert_parameters // layers
    body = model.body_parameters // layers + 2 * hidden * hidden
    idle = (model.parameters - (model.active_parameters or model.parameters)) // layers
    spec = _one_layer(model, "mtp", body + head, model.vocab_size)
    spec = replace(
        spec,
        expert_parameters=experts,
        active_parameters=body + head - idle if model.active_parameters else None,
    )
    share = model.body_weight_bytes / max(model.body_parameters, 1)
    return Draft(spec, int(body * share) * modules, modules)


def model_draft(model: ModelSpec) -> Draft:
    """A separate model."""
    return Draft(model, model.weight_bytes, model.caching_layers)


def _one_layer(model: ModelSpec, name: str, parameters: int, vocabulary: int) -> ModelSpec:
    return replace(
        model,
        name=f"{model.name}-{name}",
        layers=1,
        parameters=parameters,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        window=None,
        window_layers=0,
        kv_layers=(),
        active_parameters=None,
        expert_parameters=0,
        quantization=None,
        weight_bits=None,
        quantized_parameters=0,
        mtp_modules=0,
        notes=(),
        source=f"derived from {model.name}",
    )
