"""A run's options for its allocator: integers and short words; each allocator uses those that apply."""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, TypeVar

from kvsim.allocators.option import NoOptions

T = TypeVar("T")


class Order(Enum):
    """Which free block an engine allocates first. A freed table is reused from its last block on."""

    STACK = "stack"
    """the block freed last (vLLM V0; V1 0.33 with its prefix cache off)"""
    QUEUE = "queue"
    """the block freed first (vLLM V1 0.11, nano-vLLM)"""
    HASHED_LAST = "hashed last"
    """like QUEUE, but blocks that are not full go to the front (vLLM V1 0.33 with its prefix cache on)"""


class CacheRules(NamedTuple):
    """How an engine keeps prefixes of released sequences."""

    newest: bool = False
    """look-ups find the newest of equal blocks, not the oldest (nano-vLLM)"""
    lookahead: int = 0
    """tokens behind a block that must match too (vLLM's EAGLE and MTP)"""
    told: bool = False
    """a table may grow before its contents are verified (drafts): only blocks reported by `fill` are found"""
    drops_last: bool = False
    """the last block of a hit is computed anyway (vLLM's EAGLE with a connector)"""


class Groups(NamedTuple):
    """The layers of a model in groups; each group needs its own slot for a token."""

    full: int
    """groups that keep every token"""
    windowed: int
    """groups that keep the last `window` tokens"""
    window: int
    """tokens that a windowed layer sees, including the newest"""
    max_chunk: int | None = None
    """the most tokens that a step adds to a sequence; None: no limit"""

    @property
    def each(self) -> int:
        """Number of groups: slots per token."""
        return self.full + self.windowed

    @property
    def names(self) -> list[str]:
        """Names of the groups, the full ones first."""
        return [layers_named("full")] * self.full + [layers_named("window", self.window)] * self.windowed

    def apart(self, pages: tuple[int, int], page_size: int) -> tuple[tuple[str, int], ...]:
        """`Allocator.pools`, given the pages per full group and per windowed group."""
        full, windowed = pages[0] * self.full * page_size, pages[1] * self.windowed * page_size
        return (layers_named("full"), full), (layers_named("window", self.window), windowed)


def layers_named(kind: str, reach: int | None = None) -> str:
    """Name of layers that keep the same tokens: full, window 1,024, chunk 8,192, states."""
    if reach is None:
        return "states" if kind == "state" else kind
    return f"{kind} {reach:,}"


def kinds_of(names: Iterable[str]) -> list[str]:
    """The distinct names: full attention first, states last."""
    return sorted(dict.fromkeys(names), key=lambda name: (name == "states", name != "full"))


class LayerGroup(NamedTuple):
    """A group of layers that share a block table; in one pool, pages of all groups have the same bytes."""

    kind: str
    """full, window, chunk or state"""
    block_size: int
    """tokens per block; for states, tokens between two kept states"""
    reach: int | None = None
    """tokens of the window, or of a chunk"""
    checkpoint_grid: int | None = None
    """for states: where a kernel can store one inside a prompt (1: anywhere); None: nowhere"""
    page_bytes: int = 0
    """bytes of a block in all layers of the group, for allocators with unequal pages"""


class Hybrid(NamedTuple):
    """Different layers in groups over one pool of pages."""

    groups: tuple[LayerGroup, ...]
    in_flight_tokens: int
    """most tokens scheduled but not finished: a step's budget, doubled if the next step is in flight"""
    late: bool = False
    """whether a step is scheduled before the previous one has ended"""
    retention: int | None = 0
    """which ends of windows and states are kept: 0 where prompts end and diverge, None all, else every N"""
    match_tokens: int | None = None
    """where hits may end inside a block of states; None: at block ends only"""


class Options(NamedTuple):
    """A run's options for its allocator, and the model's sizes: by default those of Llama-3.1-8B."""

    block_size: int = 16
    """slots per block, for allocators with blocks"""
    order: Order = Order.STACK
    """which free block to allocate, for allocators with blocks"""
    cache: CacheRules | None = None
    """how prefixes are kept, for allocators that can; None: not at all"""
    host_slots: int = 0
    """size of the host pool, for allocators that can swap"""
    groups: Groups | None = None
    """how layers are kept, for allocators that free slots behind windows; None: all layers alike"""
    hybrid: Hybrid | None = None
    """how different layers are kept, for allocators that keep them in groups"""
    token_bytes: int = 131_072
    """keys and values of a token in all layers, on one GPU; with `groups`, of a slot in a group's layers"""
    layers: int = 32
    """layers that keep keys and values"""
    kv_heads: int = 8
    """on one GPU"""
    head_dim: int = 128
    dtype_bytes: int = 2
    """bytes per element of the cache"""
    max_sequences: int = 256
    """maximum sequences that the engine runs concurrently"""
    max_model_len: int = 8_192
    """tokens of the longest sequence"""
    own: object | None = NoOptions()
    """the options that the allocator `declares`; mypyc rejects a plain `object` in a NamedTuple"""

    def chosen(self, kind: type[T]) -> T:
        """The allocator's own options, of the class it declares; its defaults if none were given."""
        return self.own if isinstance(self.own, kind) else kind()


def said_by(kind: type, name: str, otherwise: T) -> T:
    """The value of a name in the body of a class, or of its nearest base that has it.

    Ignores the descriptors of compiled classes.
    """
    for each in kind.__mro__:
        said = each.__dict__.get(name)
        if said is not None and not hasattr(said, "__get__"):
            found: T = said
            return found
    return otherwise
