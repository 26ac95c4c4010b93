"""Groups of unlike layers in words, by kind: `4 groups of 9 sliding-window layers (1,024 tokens)`.

Padding takes memory, so it is mentioned, though not counted among the layers of the model.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvsim.allocators.options import layers_named
from kvsim.sim.models.kv_groups import KvGroups
from kvsim.sim.models.spec import ModelSpec

if TYPE_CHECKING:
    from kvsim.sim.deployment.hybrid import HybridMemory

LAYERS = {"full": "full-attention", "window": "sliding-window", "chunk": "chunked", "states": "recurrent"}


def kinds_in_words(
    hybrid: "HybridMemory | None", groups: KvGroups | None, model: ModelSpec
) -> dict[str, str]:
    """Words by kind of layer, as the allocator names it; empty if all layers share a table."""
    if hybrid is not None:
        sizes: dict[str, list[int]] = {}
        for group, layer in zip(hybrid.groups, hybrid.layers.groups, strict=False):
            sizes.setdefault(layers_named(layer.kind, layer.reach), []).append(len(group.layers))
        to = _padded_to(hybrid)
        return {name: _in_words(name, layers, to) for name, layers in sizes.items()}
    if groups is None:
        return {}
    windowed = layers_named("window", groups.window)
    kinds = {
        "full": (groups.full_groups, model.caching_layers - model.window_layers),
        windowed: (groups.window_groups, model.window_layers),
    }
    each = groups.layers_per_group
    return {name: _of_equal(name, count, each, layers) for name, (count, layers) in kinds.items() if count}


def _padded_to(hybrid: "HybridMemory") -> int:
    """The number of layers to which every group is padded; 0 if layers have pages of several sizes."""
    sizes = {page.stride for group in hybrid.groups for page in group.pages}
    return hybrid.page_bytes // sizes.pop() if len(sizes) == 1 else 0


def _in_words(name: str, layers: Sequence[int], to: int) -> str:
    """`5 groups of 10 and 1 of 2 sliding-window layers (1,024 tokens), padded to 10`."""
    (size, count), *others = Counter(layers).items()
    parts = [_groups(count, size)] + [f"{count} of {size}" for size, count in others]
    padded = f", padded to {to}" if min(layers) < to else ""
    return f"{' and '.join(parts)} {_layers(name, layers[-1])}{padded}"


def _of_equal(name: str, count: int, size: int, layers: int) -> str:
    """`52 sliding-window layers (1,024 tokens) in 6 groups, padded to 10 each`."""
    if count * size == layers:
        return f"{_groups(count, size)} {_layers(name, size)}"
    groups = "1 group, padded to" if count == 1 else f"{count} groups, each padded to"
    return f"{layers} {_layers(name, layers)} in {groups} {size}"


def _groups(count: int, size: int) -> str:
    return f"{count} group{'s' * (count > 1)} of {size}"


def _layers(name: str, count: int) -> str:
    """`sliding-window layers (1,024 tokens)`."""
    kind, _, reach = name.partition(" ")
    tokens = f" ({reach} tokens)" if reach else ""
    return f"{LAYERS[kind]} layer{'s' * (count > 1)}{tokens}"
