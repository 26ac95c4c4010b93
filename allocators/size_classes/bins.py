"""Size classes as small floating-point numbers: a power of two and `1 << bits` equal steps above it.

    bits = 3:  ... | 8 9 10 11 12 13 14 15 | 16 18 20 22 24 26 28 30 | 32 36 40 44 48 52 56 60 | 64 ...

Sizes below `1 << bits` have one class each. Above, a size with highest bit e is rounded to a multiple of
`2^(e - bits)`, so rounding up costs at most `1 / (2^bits + 1)` of the size. Class numbers ascend with sizes.
"""


def class_down(size: int, bits: int) -> int:
    """The class with the largest class size not above `size`."""
    shift = size.bit_length() - 1 - bits
    if shift <= 0:
        return size
    return (shift << bits) + (size >> shift)


def class_up(size: int, bits: int) -> int:
    """The class with the smallest class size not below `size`."""
    shift = size.bit_length() - 1 - bits
    if shift <= 0:
        return size
    return (shift << bits) - (-size >> shift)


def class_size(number: int, bits: int) -> int:
    """The size of a class."""
    shift = (number >> bits) - 1
    if shift <= 0:
        return number
    return (number - (shift << bits)) << shift
