"""The settings of the caching allocator, and the rounding of requests and of segments.

    request  --round_size-->       block     a multiple of 512 bytes, or a step between powers of two
    block    --segment_bytes-->    segment   <= 1 MiB: 2 MiB    < 10 MiB: 20 MiB    else: whole 2 MiB

Settings that do not change the bookkeeping are unknown here.
"""

from dataclasses import dataclass

MIB = 1 << 20
GRAIN = 512
"""bytes: every block is a multiple"""
SMALL = MIB
"""bytes of the largest block of the small pool"""
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
OWN_SEGMENT = 10 * MIB
"""bytes from which a block gets a segment of its own size"""
NO_LIMIT = 1 << 64
INTERVALS = 16
"""intervals of `roundup_power2_divisions`: 1 MiB, 2 MiB, 4 MiB ... 32 GiB and above"""


@dataclass(frozen=True)
class Settings:
    """The settings that change the bookkeeping; the defaults are PyTorch's.

    Attributes
    ----------
    max_split_bytes : int
        A block of this size or more is neither split nor allocated to a smaller request.
    divisions : tuple of int
        For sizes from 2^(20+i) bytes on (the first: also all below): steps between two powers of two to
        round up to; 0 or 1: none, multiples of 512 bytes.
    collect_above : float
        Share of the allowed memory above which cached segments are freed before new ones are taken
        (only if a fraction was set); 0: never.
    expandable : bool
        Virtual ranges that grow instead of segments.
    """

    max_split_bytes: int = NO_LIMIT
    divisions: tuple[int, ...] = (0,) * INTERVALS
    collect_above: float = 0.0
    expandable: bool = False

    def round_size(self, size: int) -> int:
        """Bytes of the block for a request of `size` bytes."""
        if size < GRAIN:
            return GRAIN
        divisions = self.divisions[min(max(size.bit_length() - 21, 0), INTERVALS - 1)]
        if divisions <= 1 or size <= GRAIN * divisions:
            return -(-size // GRAIN) * GRAIN
        floor = 1 << (size.bit_length() - 1)
        step = floor >> (divisions.bit_length() - 1)
        return -(-size // step) * step if step else 2 * floor if size > floor else size


def segment_bytes(size: int) -> int:
    """Bytes to request from the card for a block of `size` bytes."""
    if size <= SMALL:
        return SMALL_SEGMENT
    if size < OWN_SEGMENT:
        return LARGE_SEGMENT
    return -(-size // SMALL_SEGMENT) * SMALL_SEGMENT
