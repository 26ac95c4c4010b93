"""The memory for measurements: one slab of random numbers, sliced for every launch.

Weights, keys and values of consecutive launches are different slices, so they do not come from the cache, and
no point has to fill memory. Launches may write into the slab: it stays random.
"""

from collections.abc import Sequence
from math import prod

import torch

from kvsim.kernels.calibration.points import launches_of

NARROW = torch.float8_e4m3fn
"""The type of 8-bit weights, keys, values and activations."""

SHARE_OF_FREE_MEMORY = 0.55
ELEMENTS_OF_A_REHEARSAL = 2**19
SHARE_IN_8_BITS = 4
"""One in so many of the slab's numbers exists in 8 bits too."""
ALIGNED = 1024
"""Elements: every slice begins at a multiple of this, so that kernels are compiled once."""


class Room:
    """The source of the tensors for launches.

    Attributes
    ----------
    device : torch.device
        The GPU; the CPU in a rehearsal.
    dtype : torch.dtype
        Of weights, keys and activations: bfloat16; float16 in a rehearsal, as bfloat16 is slow there.
    rehearsal : bool
        Whether it is on the CPU.
    """

    def __init__(self, rehearsal: bool) -> None:
        self.rehearsal = rehearsal
        self.device = torch.device("cpu" if rehearsal else "cuda")
        self.dtype = torch.float16 if rehearsal else torch.bfloat16
        self.generator = torch.Generator(self.device).manual_seed(0)
        if rehearsal:
            elements = ELEMENTS_OF_A_REHEARSAL
        else:
            elements = int(SHARE_OF_FREE_MEMORY * torch.cuda.mem_get_info()[0] / self.dtype.itemsize)
        self._slab = torch.empty(elements // ALIGNED * ALIGNED, dtype=self.dtype, device=self.device)
        self._slab.normal_(generator=self.generator)
        self._narrow: torch.Tensor | None = None
        self._at = 0
        self._pinned: torch.Tensor | None = None

    def launches(self, launch_bytes: float, launch_flops: float = 0) -> int:
        """How many launches a graph needs, if each reads this many bytes and computes this many flops."""
        return 1 if self.rehearsal else launches_of(launch_bytes, launch_flops)

    def cut(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The next slice of the slab; uint8 and float32 reinterpret its bits, `NARROW` has a slab of its own.

        Raises MemoryError if it is larger than half the slab: two launches must not read the same data.
        """
        kind = dtype or self.dtype
        slab = self._slab if kind != NARROW else self._slab_in_8_bits()
        elements = -(-prod(shape) * kind.itemsize // slab.itemsize)
        if 2 * elements > len(slab):
            raise MemoryError(f"{prod(shape) * kind.itemsize} bytes, twice, do not fit the memory")
        if self._at + elements > len(slab):
            self._at = 0
        found = slab[self._at : self._at + elements]
        self._at += -(-elements // ALIGNED) * ALIGNED
        return found.view(kind)[: prod(shape)].view(shape)

    def _slab_in_8_bits(self) -> torch.Tensor:
        """Converted numbers: reinterpreted bits could be NaN, and products with it draw less power."""
        if self._narrow is None:
            self._narrow = self._slab[: len(self._slab) // SHARE_IN_8_BITS].to(NARROW)
        return self._narrow

    def new(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A new tensor, to be written."""
        return torch.empty(shape, dtype=dtype or self.dtype, device=self.device)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A new tensor of random numbers."""
        drawn = torch.empty(shape, dtype=torch.float32, device=self.device).normal_(generator=self.generator)
        return drawn.to(dtype or self.dtype)

    def integers(self, values: Sequence[int]) -> torch.Tensor:
        """32-bit integers on the device."""
        return torch.tensor(values, dtype=torch.int32).to(self.device)

    def shuffled(self, count: int, seed: int = 1) -> torch.Tensor:
        """0 .. count - 1 in random order, as 32-bit integers on the host."""
        return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).int()

    def pinned(self, size: int) -> torch.Tensor:
        """At least `size` bytes of pinned host memory, which the GPU copies directly.

        It holds numbers like the slab's: some random bytes would be NaN, and copies write into the slab.
        """
        if self._pinned is None or len(self._pinned) < size:
            numbers = torch.empty(-(-size // self.dtype.itemsize), dtype=self.dtype)
            numbers.normal_(generator=torch.Generator().manual_seed(0))
            self._pinned = numbers.view(torch.uint8)
            if not self.rehearsal:
                self._pinned = self._pinned.pin_memory()
        return self._pinned
