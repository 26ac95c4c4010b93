"""Groups of unlike layers in words, by kind: `4 groups of 9 sliding-window layers (1,024 tokens)`."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvsim.allocators.options import layers_named
from kvsim.sim.models.kv_groups import KvGroups

if TYPE_CHECKING:
    from kvsim.sim.deployment.hybrid import HybridMemory

LAYERS = {"full": "full-attention", "window": "sliding-window", "chunk": "chunked", "states": "recurrent"}


def kinds_in_words(hybrid: "HybridMemory | None", groups: KvGroups | None) -> dict[str, str]:
    """Words by kind of layer, as the allocator names it; empty if all layers share a table."""
    sizes: dict[str, list[int]] = {}
    if hybrid is not None:
        for group, layer in zip(hybrid.groups, hybrid.layers.groups, strict=False):
            sizes.setdefault(layers_named(layer.kind, layer.reach), []).append(len(group.layers))
    elif groups is not None:
        each = groups.layers_per_group
        sizes = {
            "full": [each] * groups.full_groups,
            layers_named("window", groups.window): [each] * groups.window_groups,
        }
    return {name: _in_words(name, layers) for name, layers in sizes.items() if layers}


def _in_words(name: str, layers: Sequence[int]) -> str:
    """`5 groups of 10 and 1 of 2 sliding-window layers (1,024 tokens)`."""
    kind, _, reach = name.partition(" ")
    (size, count), *others = Counter(layers).items()
    parts = [f"{count} group{'s' * (count > 1)} of {size}"]
    parts += [f"{count} of {size}" for size, count in others]
    tokens = f" ({reach} tokens)" if reach else ""
    return f"{' and '.join(parts)} {LAYERS[kind]} layer{'s' * (layers[-1] > 1)}{tokens}"
