"""What a run may choose about its allocator: integers and small words; each takes those it knows."""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, TypeVar

from kvsim.allocators.option import NoOptions

T = TypeVar("T")


class Order(Enum):
    """Which of its free blocks an engine allocates first. A freed table comes back from its last block on."""

    STACK = "stack"
    """the one freed last (vLLM V0; V1 0.33 with its prefix cache off)"""
    QUEUE = "queue"
    """the one freed first (vLLM V1 0.11, nano-vLLM)"""
    HASHED_LAST = "hashed last"
    """as QUEUE, but blocks that are not full go to the front (vLLM V1 0.33 with its prefix cache on)"""


class CacheRules(NamedTuple):
    """How an engine keeps prefixes of sequences that are gone."""

    newest: bool = False
    """of equal blocks the one entered last is found, not the first (nano-vLLM)"""
    lookahead: int = 0
    """tokens behind a block that must be equal, too, for it to be found (vLLM's EAGLE and MTP)"""
    told: bool = False
    """a table may grow before what it holds is verified (drafts): only what `fill` names is found"""
    drops_last: bool = False
    """the last block of a text that is found is computed all the same (vLLM's EAGLE with a connector)"""


class Groups(NamedTuple):
    """The layers of a model in groups, each of which needs a slot of its own for a token."""

    full: int
    """groups that keep every token"""
    windowed: int
    """groups that keep the last `window` tokens"""
    window: int
    """tokens that a windowed layer sees, the newest included"""
    max_chunk: int | None = None
    """most tokens that a step adds to a sequence; None: all that it has"""

    @property
    def each(self) -> int:
        """All groups: the slots of one token."""
        return self.full + self.windowed

    @property
    def names(self) -> list[str]:
        """Of the groups: the full ones first."""
        return [layers_named("full")] * self.full + [layers_named("window", self.window)] * self.windowed

    def apart(self, pages: tuple[int, int], page_size: int) -> tuple[tuple[str, int], ...]:
        """`Allocator.pools` of so many pages for each full group, then for each windowed one."""
        full, windowed = pages[0] * self.full * page_size, pages[1] * self.windowed * page_size
        return (layers_named("full"), full), (layers_named("window", self.window), windowed)


def layers_named(kind: str, reach: int | None = None) -> str:
    """What layers that keep the same are called: full, window 1,024, chunk 8,192, states."""
    if reach is None:
        return "states" if kind == "state" else kind
    return f"{kind} {reach:,}"


def kinds_of(names: Iterable[str]) -> list[str]:
    """The different ones of these names: full attention first, states last."""
    return sorted(dict.fromkeys(names), key=lambda name: (name == "states", name != "full"))


class LayerGroup(NamedTuple):
    """A group of layers that share a block table; in one pool the pages of all groups have the same bytes."""

    kind: str
    """full, window, chunk or state"""
    block_size: int
    """tokens of a block; of states, those between two that are kept"""
    reach: int | None = None
    """tokens of the window, or of a chunk"""
    checkpoint_grid: int | None = None
    """of states: where a kernel can leave one inside a prompt (1: anywhere); None: nowhere"""
    page_bytes: int = 0
    """of a block in all layers of the group, for allocators whose pages are unequal"""


class Hybrid(NamedTuple):
    """Unlike layers in groups over one pool of pages."""

    groups: tuple[LayerGroup, ...]
    in_flight_tokens: int
    """most tokens scheduled and not yet settled: a step's budget, twice that where the next is under way"""
    late: bool = False
    """whether a step is decided before the one before it has ended"""
    retention: int | None = 0
    """which ends of windows and states are kept: 0 where prompts end and part, None all, else each so many"""
    match_tokens: int | None = None
    """where hits may end inside a block of states; None: at block ends"""


class Options(NamedTuple):
    """What a run may choose about its allocator, and the model's sizes: by default those of Llama-3.1-8B."""

    block_size: int = 16
    """slots of a block, for those that have blocks"""
    order: Order = Order.STACK
    """the free block to allocate, for those that have blocks"""
    cache: CacheRules | None = None
    """how prefixes are kept, for those that can; None: not at all"""
    host_slots: int = 0
    """size of the host pool, for those that can swap"""
    groups: Groups | None = None
    """how layers are kept, for those that free what windows leave behind; None: all layers alike"""
    hybrid: Hybrid | None = None
    """how unlike layers are kept, for those that keep them in groups"""
    token_bytes: int = 131_072
    """keys and values of a token in all layers, on one GPU; with `groups`, of a slot in a group's layers"""
    layers: int = 32
    """those that keep keys and values"""
    kv_heads: int = 8
    """on one GPU"""
    head_dim: int = 128
    dtype_bytes: int = 2
    """of an element of the cache"""
    max_sequences: int = 256
    """that the engine runs at once"""
    max_model_len: int = 8_192
    """tokens of the longest sequence"""
    own: object | None = NoOptions()
    """what the allocator itself `declares`; mypyc finds no `object` alone in a NamedTuple"""

    def chosen(self, kind: type[T]) -> T:
        """The allocator's own options, of the kind that it declares; its defaults where none were made."""
        return self.own if isinstance(self.own, kind) else kind()


def said_by(kind: type, name: str, otherwise: T) -> T:
    """What the body of a class, or of the nearest one above it that has the name, says of a setting.

    A compiled class has a descriptor there, which says nothing.
    """
    for each in kind.__mro__:
        said = each.__dict__.get(name)
        if said is not None and not hasattr(said, "__get__"):
            found: T = said
            return found
    return otherwise
