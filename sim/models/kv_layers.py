"""What each layer of a model caches of a sequence.

    kind                      caches, for a sequence of t tokens                 families
    full_attention            key and value of all t                             most
    sliding_window            of the last `window`                               Mistral, Gemma, gpt-oss
    chunked_local_attention   of its current chunk of `chunk`                    Llama 4
    mla_attention             one latent of `head_dim` numbers for all heads     DeepSeek, Kimi
    cross_attention           of the encoder's tokens                            Whisper, Llama 3.2 Vision
    mamba                     one state, whatever t                              Mamba, GDN, linear attention

A model is a tuple of `KvLayers`, one per type of layer. Some layers cache nothing of their own (MLPs, layers
that read another layer's keys and values): they are in none. The names of the kinds are vLLM's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import isqrt, prod

from kvsim.sim.errors import KvsimError

KINDS = (
    *("full_attention", "sliding_window", "chunked_local_attention"),
    *("mla_attention", "cross_attention", "mamba"),
)
EVERY_TOKEN = ("full_attention", "mla_attention")
"""Kinds of layers that keep all tokens of a sequence."""
STATES = ("mamba1", "mamba2", "gdn", "linear", "conv")


@dataclass(frozen=True, kw_only=True)
class RecurrentState:
    """The state of a recurrent layer: the last inputs of a convolution, and a matrix per head.

    Attributes
    ----------
    kind : "mamba1", "mamba2", "gdn", "linear" or "conv"
        Mamba 1 and 2, gated delta net, plain linear attention, short convolution.
    conv_taps, conv_channels : int
        Inputs kept per channel (kernel size less 1), and channels outside the groups.
    groups, group_channels : int
        Groups of heads that share their projections (Mamba 2), and channels of each; GPUs that share a
        layer each hold the groups that their heads need.
    heads, head_values : int
        Heads, and numbers in each head's matrix.
    chunk_tokens : int
        Tokens that a kernel scans at a time: states lie at multiples of it.
    conv_dtype_bytes, dtype_bytes : int or None
        Bytes per number in the two parts; None: as a 16-bit weight.
    """

    kind: str
    conv_taps: int = 0
    conv_channels: int = 0
    groups: int = 0
    group_channels: int = 0
    heads: int = 0
    head_values: int = 0
    chunk_tokens: int = 1
    conv_dtype_bytes: int | None = None
    dtype_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in STATES:
            raise KvsimError(f"state must be one of {', '.join(STATES)}, got {self.kind!r}")

    def shapes(self, tensor_parallel_size: int = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(taps, channels) of the convolution and (heads, numbers) of the state, on each GPU."""
        tp = tensor_parallel_size
        groups = self.groups if self.groups % tp == 0 else self.groups + tp - self.groups
        channels = self.conv_channels + groups * self.group_channels
        return (self.conv_taps, channels // tp), (self.heads // tp, self.head_values)

    def bytes_per_sequence(self, tensor_parallel_size: int = 1, dtype_bytes: int = 2) -> int:
        """Bytes of one layer's state on each GPU."""
        convolution, state = self.shapes(tensor_parallel_size)
        return prod(convolution) * (self.conv_dtype_bytes or dtype_bytes) + prod(state) * (
            self.dtype_bytes or dtype_bytes
        )

    def scan_flops_per_token(self, tensor_parallel_size: int = 1) -> int:
        """Operations of one layer per prompt token, on each GPU.

        4 per number of the state, which is written and read; plus the interaction of the tokens within a
        chunk, taking a head's matrix as square. Mamba 1 scans token by token on the vector units, 16 times
        slower than matrices: counted 16 times.
        """
        heads, values = self.shapes(tensor_parallel_size)[1]
        if self.kind == "mamba1":
            return 16 * 4 * heads * values
        return heads * (4 * values + 2 * self.chunk_tokens * isqrt(values))

    def scan_bytes_per_token(self, tensor_parallel_size: int = 1, dtype_bytes: int = 2) -> float:
        """Bytes that one layer moves per prompt token: the state of each chunk is written and read.

        A token-by-token scan keeps the state in registers.
        """
        if self.chunk_tokens <= 1:
            return 0.0
        heads, values = self.shapes(tensor_parallel_size)[1]
        return 2 * heads * values * (self.dtype_bytes or dtype_bytes) / self.chunk_tokens

    def refusal(self, tensor_parallel_size: int) -> str | None:
        """Why this many GPUs cannot share the state; None if they can."""
        tp = tensor_parallel_size
        if self.kind == "mamba2" and self.groups % tp and self.groups != 1:
            return (
                f"tensor_parallel_size must divide the {self.groups} groups of Mamba 2 heads, or there must "
                f"be one group, got {tp}"
            )
        if self.heads % tp or self.conv_channels % tp:
            return (
                f"tensor_parallel_size must divide the {self.heads} heads of the recurrent layers, got {tp}"
            )
        return None


@dataclass(frozen=True, kw_only=True)
class KvLayers:
    """Layers of one type.

    Attributes
    ----------
    kind : str
        One of KINDS.
    layers : tuple of int
        Layer numbers, in the order in which the engine builds them.
    kv_heads, head_dim, value_dim : int
        Cached heads, and the sizes of a key and of a value; MLA: 1, the latent's size and 0.
    window, chunk : int or None
        Tokens that a sliding window sees, including the newest; tokens per chunk.
    state : RecurrentState or None
        For recurrent layers.
    dtype_bytes : int or None
        Bytes per cached number if the cache's type does not decide (an index in fp8).
    """

    kind: str
    layers: tuple[int, ...]
    kv_heads: int = 0
    head_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    chunk: int | None = None
    state: RecurrentState | None = None
    dtype_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise KvsimError(f"kind of layer must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if (self.kind == "mamba") != (self.state is not None):
            raise KvsimError(f"state and kind mamba need each other, got {self.kind}")
        for field, kind in (("window", "sliding_window"), ("chunk", "chunked_local_attention")):
            if (getattr(self, field) is not None) != (self.kind == kind):
                raise KvsimError(f"{field} and kind {kind} need each other, got {self.kind}")

    def numbers_per_token(self, tensor_parallel_size: int = 1) -> int:
        """Numbers cached per token in one layer on each GPU; 0 for recurrent layers."""
        split = 1 if self.kind == "mla_attention" else tensor_parallel_size
        return kv_heads_per_gpu(self.kv_heads, split) * (self.head_dim + self.value_dim)


def kv_heads_per_gpu(kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads on each GPU: split evenly, or one on each if there are more GPUs than heads."""
    return max(1, kv_heads // tensor_parallel_size) if kv_heads else 0


def kv_layers_from(entries: Iterable[KvLayers | Mapping[str, object]]) -> tuple[KvLayers, ...]:
    """The records, also from the JSON form in a run's config.json."""
    return tuple(entry if isinstance(entry, KvLayers) else _from_json(entry) for entry in entries)


def _from_json(entry: Mapping[str, object]) -> KvLayers:
    given = {field.name: entry[field.name] for field in fields(KvLayers) if field.name in entry}
    state, layers = given.get("state"), given.get("layers")
    if isinstance(state, Mapping):
        given["state"] = RecurrentState(**state)
    if isinstance(layers, list | tuple):
        given["layers"] = tuple(layers)
    return KvLayers(**given)  # type: ignore[arg-type]
