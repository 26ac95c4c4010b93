"""The words of numpy's generator PCG64DXSM at many places of its sequence at once.

numpy jumps from place to place, one at a time, which takes longer than drawing there. Its state is a number
of 128 bits, and so is that of k steps later:

    s(k) = s * M^k + c * (1 + M + ... + M^(k - 1))        modulo 2^128

Arrays hold halves of 64 bits, whose products are put together from quarters.
"""

from typing import Final

import numpy as np

from kvsim.sim.serving.courses import Counts

Words = np.ndarray[tuple[int], np.dtype[np.uint64]]

MULTIPLIER: Final = 0xDA942042E4DD58B5
MODULUS: Final = 1 << 128
QUARTER: Final = (1 << 32) - 1


class Rows:
    """The words from the beginning of each row, if rows begin `apart` words from each other.

    Parameters
    ----------
    generator : PCG64DXSM
        At the beginning of the first row.
    """

    def __init__(self, generator: np.random.PCG64DXSM, apart: int) -> None:
        first = generator.state["state"]
        self._first, self._apart = first["state"], apart
        self._add = first["inc"]
        self._powers, self._sums = [1], [0]  # M^k and the sum that belongs to it, for k = 0, 1, ...
        self._split = _halves(self._powers), _halves(self._sums)
        self._multiply = pow(MULTIPLIER, apart, MODULUS)  # from a row to the next
        generator.advance(apart)
        self._next = generator.state["state"]["state"] - self._first * self._multiply
        self._row, self._state = 0, self._first

    def draw(self, row: int, words: Counts) -> Words:
        """So many words of this row, of the next one, ... in one array."""
        if row != self._row:
            to_it = pow(MULTIPLIER, row * self._apart, (MULTIPLIER - 1) * MODULUS)
            self._state = self._first * to_it + self._add * ((to_it - 1) // (MULTIPLIER - 1))
        states = []
        for _ in range(len(words)):
            states.append(self._state % MODULUS)
            self._state = states[-1] * self._multiply + self._next
        self._row = row + len(words)
        self._look_at(int(words.max()))
        steps = np.arange(words.sum())
        steps -= (np.add.accumulate(words) - words).repeat(words)
        (power_high, power_low), (sum_high, sum_low) = self._split
        high, low = (half.repeat(words) for half in _halves(states))
        power, added = power_low.take(steps), sum_low.take(steps)
        high *= power
        high += power_high.take(steps) * low
        high += sum_high.take(steps)
        high += _upper(low, power)
        low *= power
        low += added
        high += low < added  # the carry
        return _output(high, low)

    def _look_at(self, most: int) -> None:
        """Know the powers for so many words."""
        powers, sums = self._powers, self._sums
        if most > len(powers):
            while most > len(powers):
                sums.append((sums[-1] * MULTIPLIER + self._add) % MODULUS)
                powers.append(powers[-1] * MULTIPLIER % MODULUS)
            self._split = _halves(powers), _halves(sums)


def _halves(numbers: list[int]) -> tuple[Words, Words]:
    """The upper and the lower halves of numbers of 128 bits."""
    halves = np.frombuffer(b"".join([number.to_bytes(16, "little") for number in numbers]), "<u8")
    return halves[1::2].copy(), halves[::2].copy()


def _upper(one: Words, other: Words) -> Words:
    """The upper halves of products."""
    one_low, one_high, low, high = one & QUARTER, one >> 32, other & QUARTER, other >> 32
    middle = one_high * low
    middle += (one_low * low) >> 32
    rest = one_low * high
    rest += middle & QUARTER
    upper: Words = one_high * high
    upper += middle >> 32
    upper += rest >> 32
    return upper


def _output(high: Words, low: Words) -> Words:
    """The words that the generator gives in these states."""
    high ^= high >> 32
    high *= MULTIPLIER
    high ^= high >> 48
    high *= low | 1
    return high
