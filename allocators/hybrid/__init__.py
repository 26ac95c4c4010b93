"""Groups of unlike layers over one pool of blocks, with their prefixes, as vLLM 0.33.0 keeps them.

pool.py      the blocks: references, the free queue, which text each still holds
tables.py    block tables of a group: full attention (window_tables.py: windows, chunks)
states.py    those of recurrent layers: states at block ends (pieces.py: where pieces of prompts end)
cache.py     all groups of a sequence together: hits, fit, placing, release
"""

from kvsim.allocators.hybrid.cache import HybridCache
from kvsim.allocators.hybrid.specs import GroupSpec
from kvsim.allocators.hybrid.tables import Text

__all__ = ["GroupSpec", "HybridCache", "Text"]
