"""The miss-ratio curve of a trace: the exact hits of LRU prefix caches of every size, in one pass.

    request   blocks        stack before, newest first     distance of each block
       1      A B C         -                              - - -          (never seen: a miss in any cache)
       2      A B D         A B C                          1 2 -          A and B hit if 2 blocks fit
       3      A B C         A B D C                        1 2 4          C hits if 4 fit

Mattson's stack distance (1970): a block is in an LRU cache of c blocks exactly if fewer than c others were
used since. A block's identity includes everything before it in the prompt, so the same content after another
prefix is another block, as in prefix caches. The first block of a request counts as the newest, so no cache
holds a block without those before it.

`loose` counts a block as a hit if its content was seen before, after any prefix. If ids stand for contents,
as in Bailian's traces, that is more than a prefix cache can serve: the overcount.

Only whole blocks are cached. Requests are looked up one at a time in order of arrival: concurrency, and
prompts still being computed, are ignored.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.sim.errors import KvsimError
from kvsim.sim.workload import Int64Column
from kvsim.workloads.lengths import Lengths

MOST_LOOKUPS = 1_500_000
"""Maximum number of blocks in a trace at the default block size."""
FINEST, COARSEST = 16, 4096


@dataclass(frozen=True)
class MissRatio:
    """A miss-ratio curve.

    Attributes
    ----------
    block_tokens : int
    prompt_tokens : int
        Tokens of all prompts.
    distances : int64 array
        Stack distances of all blocks seen before, in blocks, sorted.
    blocks : int
        Distinct blocks.
    loose_hits : int
        Blocks whose content was seen before, after any prefix.
    """

    block_tokens: int
    prompt_tokens: int
    distances: Int64Column
    blocks: int
    loose_hits: int

    @property
    def ceiling(self) -> float:
        """Share of the prompt tokens that an infinite cache hits."""
        return len(self.distances) * self.block_tokens / self.prompt_tokens

    @property
    def loose(self) -> float:
        """Share of the prompt tokens in blocks whose content was seen before."""
        return self.loose_hits * self.block_tokens / self.prompt_tokens

    @property
    def overcount(self) -> float:
        """Share of the loose hits that no prefix cache can serve; 0 without loose hits."""
        return 1 - len(self.distances) / self.loose_hits if self.loose_hits else 0.0

    def hit_ratio(self, capacity_tokens: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Share of the prompt tokens that caches of these sizes hit."""
        blocks = np.asarray(capacity_tokens, dtype=np.int64) // self.block_tokens
        hits = np.searchsorted(self.distances, blocks, side="right")
        found: npt.NDArray[np.float64] = hits * self.block_tokens / self.prompt_tokens
        return found

    def tokens_for(self, share: float) -> int | None:
        """The smallest cache, in tokens, with this share of an infinite cache's hits; None without hits."""
        if not len(self.distances):
            return None
        place = max(int(np.ceil(share * len(self.distances))) - 1, 0)
        return int(self.distances[place]) * self.block_tokens


def miss_ratio(lengths: Lengths, block_tokens: int | None = None) -> MissRatio:
    """The curve of a trace, see `cut`."""
    return lru_curve(cut(lengths, block_tokens))


@dataclass(frozen=True)
class Cut:
    """The prompts of a trace as blocks; a block's number identifies it and everything before it.

    Attributes
    ----------
    block_tokens : int
    prompt_tokens : int
        Tokens of all prompts.
    chains : list of tuples
        The whole blocks of each prompt, in order.
    blocks : int
        Distinct blocks, numbered from 0.
    loose_hits : int
        Blocks whose content was seen before, after any prefix.
    """

    block_tokens: int
    prompt_tokens: int
    chains: list[tuple[int, ...]]
    blocks: int
    loose_hits: int


def cut(lengths: Lengths, block_tokens: int | None = None, most_lookups: int = MOST_LOOKUPS) -> Cut:
    """Cut the prompts of a trace into blocks.

    Parameters
    ----------
    block_tokens : int or None
        None: 16, or the smallest power of two with which the trace has at most `most_lookups` blocks.

    Raises
    ------
    KvsimError
        A trace that does not say what its prompts share.
    """
    if lengths.texts is None:
        raise KvsimError(f"trace {lengths.name} does not say what its prompts have in common")
    if block_tokens is None:
        block_tokens = FINEST
        while block_tokens < COARSEST and int((lengths.prompt_tokens // block_tokens).sum()) > most_lookups:
            block_tokens *= 2
    elif block_tokens < 1:
        raise KvsimError(f"block_size must be at least 1, got {block_tokens}")
    names, loose = _Names(), _Names()
    chains: list[tuple[int, ...]] = []
    loose_hits = 0
    for row in range(len(lengths)):
        whole = int(lengths.prompt_tokens[row]) // block_tokens
        named = []
        before = -1
        for content in _blocks(lengths, row, block_tokens, whole):
            loose_hits += content in loose.known
            loose.of(content)
            before = names.of((before, content))
            named.append(before)
        chains.append(tuple(named))
    return Cut(block_tokens, int(lengths.prompt_tokens.sum()), chains, len(names.known), loose_hits)


def lru_curve(prompts: Cut) -> MissRatio:
    """The hits of LRU caches of every size."""
    stack = _Stack(sum(map(len, prompts.chains)))
    found: list[int] = []
    for named in prompts.chains:
        found += [distance for name in named if (distance := stack.distance(name))]
        for name in reversed(named):
            stack.use(name)
    distances = np.sort(np.array(found, dtype=np.int64))
    return MissRatio(
        prompts.block_tokens, prompts.prompt_tokens, distances, prompts.blocks, prompts.loose_hits
    )


class _Names:
    """Numbers distinct keys in order of appearance."""

    def __init__(self) -> None:
        self.known: dict[object, int] = {}

    def of(self, thing: object) -> int:
        return self.known.setdefault(thing, len(self.known))


class _Stack:
    """How many distinct blocks were used since each block was: a Fenwick tree over times of last use.

    Its size is a power of two, so that all upward paths end at the last position.
    """

    def __init__(self, uses: int) -> None:
        self._last: dict[int, int] = {}
        self._tree = [0] * ((1 << uses.bit_length()) + 1)
        self._now = 0

    def distance(self, block: int) -> int:
        """Position from the top, from 1; 0 if never used."""
        at = self._last.get(block)
        return 0 if at is None else len(self._last) - self._before(at - 1)

    def use(self, block: int) -> None:
        """Move a block to the top."""
        self._now = now = self._now + 1
        at = self._last.get(block)
        self._last[block] = now
        if at is None:
            self._add(now)
        else:
            self._move(at, now)

    def _add(self, place: int) -> None:
        tree = self._tree
        size = len(tree)
        while place < size:
            tree[place] += 1
            place += place & -place

    def _move(self, old: int, new: int) -> None:
        """Move a count of one from `old` to `new`; nothing changes above where their paths meet."""
        tree = self._tree
        while old != new:
            if old < new:
                tree[old] -= 1
                old += old & -old
            else:
                tree[new] += 1
                new += new & -new

    def _before(self, place: int) -> int:
        total, tree = 0, self._tree
        while place:
            total += tree[place]
            place &= place - 1
        return total


def _blocks(lengths: Lengths, row: int, size: int, whole: int) -> list[object]:
    """The contents of a prompt's whole blocks, where others may share them; unique ones beyond that."""
    texts = lengths.texts
    assert texts is not None
    low, high = int(texts.offsets[row]), int(texts.offsets[row + 1])
    runs = zip(
        texts.streams[low:high].tolist(),
        texts.firsts[low:high].tolist(),
        texts.lengths[low:high].tolist(),
        strict=True,
    )
    found: list[object] = []
    part: list[tuple[int, int, int]] = []
    room = size
    for stream, first, length in runs:
        at, end = first, first + length
        while at < end and len(found) < whole:
            taken = min(end - at, room)
            part.append((stream, at, taken))
            at, room = at + taken, room - taken
            if not room:
                found.append(tuple(part))
                part, room = [], size
    while len(found) < whole:  # unique to the prompt
        found.append((row, len(found)))
    return found
