"""h2o: half of the budget for the last tokens, half for the heavy hitters among the older ones.

    |#..#|.#..|..#.|..#.|####|####|##~~|       older tokens: kept here and there;  the last ones: all
      most blocks keep a token: hardly any is freed

If a share f = heavy / older of the tokens stays, a block of b is free only with probability (1 - f)^b: for f
of a ninth, 15 % of the blocks of 16. Such methods need one-token slots (`--block-size 1`), or moving.
Waste per sequence: the holes, up to (block_size - 1) / block_size of what was dropped.

Attention is not computed here, so the heavy hitters are unknown: a random older token is dropped, each with
equal probability (a hash of the sequence and of the number it has dropped). The paper keeps a set per head;
that would not free more blocks.
"""

from kvsim.allocators.lossy.budget import Budget, Budgeted, Holding

MASK = (1 << 64) - 1


class H2O(Budgeted):
    """Drops older tokens at random; parameters as in `Budgeted`."""

    idea = "the last tokens and the heavy hitters; the rest is dropped"
    wastes = "holes: blocks of 16 hardly ever empty; quality not modelled"
    used_by = "none; research code"
    source = "H2O, NeurIPS '23, arXiv 2306.14048"

    usual = Budget(percent=20)

    def __init__(self, capacity_slots: int, budget: Budget | None = None, block_size: int = 16) -> None:
        super().__init__(capacity_slots, budget, block_size)
        self._older: dict[int, list[int]] = {}  # kept older tokens, of each sequence that dropped any
        self._aged: dict[int, int] = {}  # tokens that are no longer recent

    def victims(self, seq: int, held: Holding, tokens: int, count: int) -> list[int]:
        aged = range(self._aged.get(seq, 0), _recent_from(held, tokens))
        return _drawn(seq, held.expired, count, [*self._older.get(seq, ()), *aged])

    def drop(self, seq: int, held: Holding, tokens: int, count: int) -> list[int]:
        older, recent = self._older.setdefault(seq, []), _recent_from(held, tokens)
        older += range(self._aged.get(seq, 0), recent)
        self._aged[seq] = recent
        return _drawn(seq, held.expired, count, older)

    def release(self, seq: int) -> None:
        super().release(seq)
        self._older.pop(seq, None)
        self._aged.pop(seq, None)


def _recent_from(held: Holding, tokens: int) -> int:
    """The first recent token, given `tokens` tokens."""
    return max(0, min(tokens - held.budget // 2, held.capacity))


def _drawn(seq: int, number: int, count: int, older: list[int]) -> list[int]:
    """Remove `count` random tokens from `older`, using the sequence's draws from `number` on."""
    chosen = []
    for drawn in range(min(count, len(older))):
        at = lot(seq, number + drawn) % len(older)
        chosen.append(older[at])
        older[at] = older[-1]
        older.pop()
    return chosen


def lot(seq: int, number: int) -> int:
    """A pseudo-random number for draw `number` of a sequence: splitmix64."""
    mixed = (seq * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03 + 0x9E3779B97F4A7C15) & MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    return mixed ^ (mixed >> 31)
