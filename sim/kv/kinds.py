"""Kinds: layers that cache the same part of a sequence, with a page size for each kind (Jenga, split pools).

    Gemma-3-27B    10 layers keep all tokens, 52 a window: pages of 16 tokens in 10 layers, and in 52

Unlike vLLM's groups (groups.py), kinds have no common size, and no page is stretched to hold a state: blocks
are as short as the kernels allow. For prefixes, states are kept as often as in vLLM.
"""

from kvsim.sim.errors import KvsimError
from kvsim.sim.kv.blocks import KvSettings, native_pages
from kvsim.sim.kv.pages import Group, Page
from kvsim.sim.models.spec import ModelSpec


def kinds_of(model: ModelSpec, settings: KvSettings) -> list[Group]:
    """One group per kind of layer.

    Raises
    ------
    KvsimError
        If GPUs cannot share the model like this, or windows must keep every token: then there are no kinds.
    """
    if settings.disable_hybrid:
        raise KvsimError(
            "disable_hybrid_kv_cache_manager must be left out for an allocator with pages of each kind's size"
        )
    kinds: dict[Page, list[int]] = {}
    for number, page in native_pages(model, settings):
        kinds.setdefault(page, []).append(number)
    return [Group(tuple(numbers), (page,) * len(numbers)) for page, numbers in kinds.items()]
