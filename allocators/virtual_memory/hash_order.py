"""The order in which a C++ `std::unordered_map` (libstdc++) iterates its integer keys.

kvcached groups freed blocks by page in such a map and handles the pages in its order, which thus decides
which page is found first later. The map is a singly linked list with a table of buckets: a key whose bucket
is empty goes to the front of the list, any other to the front of its bucket.

    reserve(7): 7 buckets; insert 3, 4, 2, 0, 9  ->  0 9 2 4 3      (9 and 2 share a bucket)
"""

from collections.abc import Iterable

FRONT = -1
"""Sentinel before the first key and after the last one."""

_PRIMES = (
    *(2, 5, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 103, 109),
    *(113, 127, 137, 139, 149, 157, 167, 179, 193, 199, 211, 227, 241, 257, 277, 293, 313, 337, 359, 383),
    *(409, 439, 467, 503, 541, 577, 619, 661, 709, 761, 823, 887, 953, 1031, 1109, 1193, 1289, 1381, 1493),
    *(1613, 1741, 1879, 2029, 2179, 2357, 2549, 2753, 2971, 3209, 3469, 3739, 4027, 4349, 4703, 5087, 5503),
    *(
        5953,
        6427,
        6949,
        7517,
        8123,
        8783,
        9497,
        10273,
        11113,
        12011,
        12983,
        14033,
        15173,
        16411,
        17749,
        19183,
    ),
    *(
        20753,
        22447,
        24281,
        26267,
        28411,
        30727,
        33223,
        35933,
        38873,
        42043,
        45481,
        49201,
        53201,
        57557,
        62233,
    ),
    *(
        67307,
        72817,
        78779,
        85229,
        92203,
        99733,
        107897,
        116731,
        126271,
        136607,
        147793,
        159871,
        172933,
        187091,
    ),
    *(202409, 218971, 236897, 256279, 277261, 299951, 324503, 351061, 379787, 410857, 444487, 480881, 520241),
)
_FEW = (2, 2, 2, 3, 5, 5, 7, 7, 11, 11, 11, 11, 13, 13)


def _buckets(wanted: int) -> int:
    if wanted < len(_FEW):
        return _FEW[wanted]
    return next(prime for prime in _PRIMES if prime >= wanted)


def hash_order(keys: Iterable[int], reserved: int) -> list[int]:
    """The keys in the order of the map, after `reserve(reserved)` and inserting them one by one."""
    different, buckets = list(dict.fromkeys(keys)), _buckets(reserved)
    found = _inserted(different[:buckets], buckets)
    while buckets < len(different):  # the table grew: all keys are reinserted, in order
        more, larger = different[buckets:], _buckets(2 * buckets)
        found = _inserted([*found, *more[: larger - buckets]], larger)
        buckets = larger
    return found


def _inserted(keys: Iterable[int], buckets: int) -> list[int]:
    """The list of a table: each key goes before those of its bucket, or to the front."""
    following: dict[int, int] = {FRONT: FRONT}
    before: dict[int, int] = {}  # non-empty bucket -> the key before its first
    for key in keys:
        place = before.setdefault(key % buckets, FRONT)
        following[key] = behind = following[place]
        following[place] = key
        if place == FRONT and behind != FRONT and (behind - key) % buckets:
            before[behind % buckets] = key
    found, key = [], following[FRONT]
    while key != FRONT:
        found.append(key)
        key = following[key]
    return found
