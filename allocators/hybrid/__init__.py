"""Groups of unlike layers over one pool of blocks, with prefix caching, as in vLLM 0.33.0.

pool.py      the blocks: references, the free queue, the text that each still holds
text.py      what is known of a sequence, and the keys of its blocks
tables.py    block tables of a group: full attention, windows, chunks
states.py    tables of recurrent layers: states at block ends, where pieces of prompts end
memory.py    the pool each group allocates from: one for all, one each, or large pages cut into small ones
cache.py     all groups of a sequence together: hits, fit, placing, release
counts.py    what the tables hold, in slots, by group and by kind of layers
regions.py   where the pages lie
grouped.py   all of that as an allocator (groups.py, kinds.py: over which memory)
uncached.py  the same accounting without prefixes, if growth can be promised
"""

from kvsim.allocators.hybrid.cache import HybridCache
from kvsim.allocators.hybrid.specs import GroupSpec
from kvsim.allocators.hybrid.text import Text

__all__ = ["GroupSpec", "HybridCache", "Text"]
