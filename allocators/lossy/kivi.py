"""kivi: keys and values in 2 bits, except for a residual of the last tokens in full precision.

    K  |qqqqqqqqqqqqqqqqqqqqqqqq|######|     whole pieces of 128 tokens are quantised, per channel
    V  |qqqqqqqqqqqqqqqqqq|############|     all but the last 128 tokens, per token

A quantised element takes its bits plus a share of the scale and the zero point (16 bits each) of its group of
32: 2 + 32/32 = 3 bits, for keys and values alike. Slots saved by quantising are `expired` for the ledger.

A piece of keys stays in full precision until it is complete, so a prompt needs room for its last one in full.

    grains of t tokens = full * (t % 128 + min(t, 128)) + quantised * (t - t % 128 + max(t - 128, 0))

Waste per sequence: 0. The memory is exact, but addresses are not modelled: sequences are adjacent, in order
of arrival. The one layer that is in full precision during a prefill is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Self

from kvsim.allocators.base import Allocator, Holdings, Region
from kvsim.allocators.option import option
from kvsim.allocators.options import Options

RESIDUAL = 128
"""tokens"""
GROUP = 32
"""elements with one scale and one zero point"""
SCALES_BITS = 32
"""per group: the scale and the zero point"""


@dataclass(frozen=True, kw_only=True)
class QuantisedOptions:
    """Options of a quantised cache."""

    kv_bits: int = option(
        "Bits per element of keys and values.",
        default=2,
        value="N",
        allowed=(1, 2, 4, 8),
        doc="bits per element of keys and values: 1, 2, 4 or 8; quality is not modelled",
    )


class Kivi(Allocator):
    """Quantised keys and values with a residual.

    Parameters
    ----------
    capacity_tokens : int
        Size of the memory, in full-precision tokens.
    full_bits : int
        Bits per element.
    bits : int
        Bits per quantised element.
    """

    family = "lossy"
    note = "Memory only: what the answers lose in quality is not modelled."
    idea = "2 bits per element, except for the last 128 tokens"
    wastes = "nothing; quality is not modelled"
    used_by = "transformers (QuantizedCache, nearly)"
    source = "KIVI, ICML '24, arXiv 2402.02750"
    declares = QuantisedOptions

    windows = True
    grows_by = 1

    @classmethod
    def from_options(cls, capacity_slots: int, options: Options) -> Self:
        return cls(capacity_slots, 8 * options.dtype_bytes, options.chosen(QuantisedOptions).kv_bits)

    def __init__(self, capacity_tokens: int, full_bits: int = 16, bits: int = 2) -> None:
        quantised = bits + SCALES_BITS // GROUP
        if not 0 < quantised < full_bits:
            raise ValueError(f"bits must be at least 1 and save something, got {bits} of {full_bits}")
        common = gcd(full_bits, quantised)
        self.full, self.quantised = full_bits // common, quantised // common
        super().__init__(2 * self.full * capacity_tokens)
        self.slots_per_token = 2 * self.full
        self._held: Holdings[int] = Holdings()
        self._retired: dict[int, int] = {}  # slots that quantising saved

    def grains(self, tokens: int) -> int:
        """Slots of `tokens` tokens: keys and values."""
        keys, values = tokens % RESIDUAL, min(tokens, RESIDUAL)
        return self.full * (keys + values) + self.quantised * (2 * tokens - keys - values)

    def slots_needed(self, tokens: int, bound: int) -> int:
        return self.grains(tokens)

    def peak_slots(self, tokens: int, bound: int) -> int:
        last_full = tokens - tokens % RESIDUAL - 1  # just before keys were quantised
        return max(self.grains(tokens), self.grains(max(last_full, 0)))

    def can_admit(self, tokens: int, bound: int) -> bool:
        return self.peak_slots(tokens, bound) <= self.free_slots

    def admit(self, seq: int, tokens: int, bound: int) -> bool:
        self._held.expect_new(seq, tokens)
        if not self.can_admit(tokens, bound):
            return False
        self._hold(seq, 0, tokens)
        return True

    def capacity(self, seq: int) -> int:
        return self._held[seq]

    def surplus(self, seq: int, tokens: int) -> int:
        return max(0, self._held[seq] - tokens) * self.slots_per_token

    def retire(self, seq: int) -> int:
        tokens = self._held[seq]
        self._retired[seq] = tokens * self.slots_per_token - self.grains(tokens)
        self.expired_slots -= self._retired[seq]  # they no longer belong to a living sequence
        return self.grains(tokens)

    def grow(self, seq: int, tokens: int) -> bool:
        held = self._held[seq]
        if tokens <= held:
            return True
        if tokens == held + 1:
            full = 1 + (held < RESIDUAL) - RESIDUAL * (tokens % RESIDUAL == 0)  # keys and values in full
            more = self.full * full + self.quantised * (2 - full)
        else:
            more = self.grains(tokens) - self.grains(held)
        if more > self.capacity_slots - self.used_slots:
            return False
        self._held[seq] = tokens
        self.used_slots += more
        self.expired_slots += (tokens - held) * self.slots_per_token - more
        return True

    def release(self, seq: int) -> None:
        tokens = self._held[seq]
        self.expired_slots += self._retired.pop(seq, 0)
        self._hold(seq, tokens, 0)
        del self._held[seq]

    def regions(self) -> Iterator[Region]:
        end = 0
        for seq, tokens in self._held.items():
            size = self.grains(tokens)
            yield Region(end, size, (seq,), per_token=self.slots_per_token)
            end += size
        if end < self.capacity_slots:
            yield Region(end, self.capacity_slots - end, ())

    def _hold(self, seq: int, before: int, tokens: int) -> None:
        more = self.grains(tokens) - self.grains(before)
        self._held[seq] = tokens
        self.used_slots += more
        self.expired_slots += (tokens - before) * self.slots_per_token - more
