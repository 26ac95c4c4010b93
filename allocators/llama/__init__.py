"""llama.cpp's KV cache, rule for rule: cells of one token each, found, shared, shifted and moved.

    batch  --batches: split-->  ubatch  --cache: find free cells-->  cells: position, sequences
                                        contiguous (until August 2025, with defragmentation) or scattered

Equal to the original code of July 2025 and of 2026, run without a model (only the bookkeeping).
"""

from kvsim.allocators.llama.cache import CellCache
from kvsim.allocators.llama.cells import Cells, Window
from kvsim.allocators.llama.slots import Placed, Slot
from kvsim.allocators.llama.window_pair import WindowPair

__all__ = ["CellCache", "Cells", "Placed", "Slot", "Window", "WindowPair"]
