"""The attention layers of a Hugging Face config, as KvLayers with the config's sizes."""

from collections.abc import Iterable, Sequence

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.hf_keys import Config, family_of, find, listed, need, need_whole, whole
from kvsim.sim.models.kv_layers import KvLayers, RecurrentState

FP8_INDEX_NUMBERS = 132
"""DeepSeek's index per token: 128 numbers in fp8 and a 32-bit scale."""

TYPES = {
    "full_attention": "full_attention",
    "attention": "full_attention",
    "global_attention": "full_attention",
    "sliding_attention": "sliding_window",
    "sliding_window_attention": "sliding_window",
    "chunked_attention": "chunked_local_attention",
    "linear_attention": "mamba",
    "mamba": "mamba",
    "conv": "mamba",
    "recurrent": "mamba",
    "hybrid": "hybrid",
}
"""The values that layer_types may contain."""

Kinds = Sequence[str | None]
"""Value -> kind of layer; None if the layer caches nothing."""


class Attention:
    """Builds KvLayers from a config, for given layer numbers."""

    def __init__(self, config: Config, kv_heads: int, head_dim: int) -> None:
        self.config, self.kv_heads, self.head_dim = config, kv_heads, head_dim
        self.value_dim = find(config, "value_dim") or head_dim
        self.layers = need(config, "layers")
        self.window = find(config, "window")

    def full(self, layers: Iterable[int]) -> KvLayers:
        """These layers keep every token."""
        return KvLayers(
            kind="full_attention",
            layers=tuple(layers),
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            value_dim=self.value_dim,
        )

    def sliding(self, layers: Iterable[int]) -> KvLayers:
        """These layers keep the last tokens."""
        if not self.window:
            raise KvsimError("sliding_window is missing: the config has layers of kind sliding_attention")
        return KvLayers(
            kind="sliding_window",
            layers=tuple(layers),
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            window=self.window + (family_of(self.config) == "cohere2"),  # its window excludes the token
        )

    def chunked(self, layers: Iterable[int]) -> KvLayers:
        """These layers keep the current chunk."""
        return KvLayers(
            kind="chunked_local_attention",
            layers=tuple(layers),
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            chunk=need_whole(self.config, "attention_chunk_size"),
        )

    def of_kinds(self, kinds: Kinds, state: RecurrentState | None = None) -> list[KvLayers]:
        """The layers by kind, in the order in which kinds first appear."""
        found = []
        for kind in dict.fromkeys(filter(None, kinds)):
            layers = [number for number, other in enumerate(kinds) if other == kind]
            if kind == "mamba":
                found.append(KvLayers(kind="mamba", layers=tuple(layers), state=state))
            else:
                make = {"full_attention": self.full, "sliding_window": self.sliding}
                found.append(make.get(kind, self.chunked)(layers))
        return found


def types_of(config: Config, layers: int) -> list[str] | None:
    """`layer_types` in kvsim's terms; None if the config has none."""
    types = listed(config, "layer_types", layers) or listed(config, "layers_block_type", layers)
    if types is None:
        return None
    unknown = sorted({str(kind) for kind in types if kind not in TYPES})
    if unknown:
        raise KvsimError(
            f"layer_types holds {', '.join(unknown)}, a kind of layer that is not known; "
            f"known are {', '.join(TYPES)}"
        )
    return [TYPES[str(kind)] for kind in types]


def latent_layers(config: Config, count: int) -> list[KvLayers]:
    """MLA: one latent for all heads; DeepSeek-V3.2 also keeps an index."""
    width = need(config, "kv_rank") + need(config, "rope_dim")
    layers = tuple(range(count))
    found = [KvLayers(kind="mla_attention", layers=layers, kv_heads=1, head_dim=width)]
    if whole(config, "index_topk"):
        index = KvLayers(
            kind="mla_attention", layers=layers, kv_heads=1, head_dim=FP8_INDEX_NUMBERS, dtype_bytes=1
        )
        found.append(index)
    return found
