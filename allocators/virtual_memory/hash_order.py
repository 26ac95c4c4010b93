"""In which order a C++ `std::unordered_map` (libstdc++) lists its integer keys.

kvcached groups freed blocks by page in such a map, and handles the pages in its order: so it decides which
page is found first later. The map is a singly linked list with a table of buckets: a key whose bucket is
empty goes to the front of the list, any other to the front of its bucket.

    reserve(7): 7 buckets; insert 3, 4, 2, 0, 9  ->  0 9 2 4 3      (9 and 2 share a bucket)
"""

from collections.abc import Sequence

_PRIMES = (
    *(2, 5, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 103, 109),
    *(113, 127, 137, 139, 149, 157, 167, 179, 193, 199, 211, 227, 241, 257, 277, 293, 313, 337, 359, 383),
    *(409, 439, 467, 503, 541, 577, 619, 661, 709, 761, 823, 887, 953, 1031, 1109, 1193, 1289, 1381, 1493),
    *(1613, 1741, 1879, 2029, 2179, 2357, 2549, 2753, 2971, 3209, 3469, 3739, 4027, 4349, 4703, 5087, 5503),
)
_FEW = (2, 2, 2, 3, 5, 5, 7, 7, 11, 11, 11, 11, 13, 13)


def _buckets(wanted: int) -> int:
    if wanted < len(_FEW):
        return _FEW[wanted]
    return next(prime for prime in _PRIMES if prime >= wanted)


def _insert(order: list[int], key: int, buckets: int) -> None:
    """Put a key before those of its bucket, or first."""
    bucket = key % buckets
    order.insert(next((at for at, other in enumerate(order) if other % buckets == bucket), 0), key)


def hash_order(keys: Sequence[int], reserved: int) -> list[int]:
    """The keys in the order of the map, inserted one by one after `reserve(reserved)`."""
    buckets = _buckets(reserved)
    order: list[int] = []
    for key in dict.fromkeys(keys):
        if len(order) + 1 > buckets:
            buckets = _buckets(max(len(order) + 2, 2 * buckets))
            again: list[int] = []
            for each in order:
                _insert(again, each, buckets)
            order = again
        _insert(order, key, buckets)
    return order
