"""kvcached with prefixes: blocks worked by hand, the bound by pages, and random calls with the books kept."""

from random import Random

import pytest

from kvsim.allocators.base import InvariantError
from kvsim.allocators.options import CacheRules, Options
from kvsim.allocators.virtual_memory.kvcached import Kvcached

CACHED = Options(block_size=16, cache=CacheRules())
STRADDLING = Options(
    token_bytes=2 * 2 * 40 * 128 * 40, layers=40, kv_heads=40, head_dim=128, cache=CacheRules()
)  # OPT-13B: 12.8 blocks in a page
SYSTEM = (0, 0, 64)


def place(pages, seq, content, tokens):
    """Admit a sequence and compute all its tokens; how many were there already."""
    match = pages.match(content, seq, tokens - 1)
    assert pages.can_admit_after(match, tokens, tokens)
    assert pages.admit_after(match, seq, tokens, tokens)
    pages.fill(seq, tokens)
    return match.tokens


def found(pages, content, own=99):
    return pages.match(content, own, 1 << 20).tokens


def test_blocks_are_shared_while_they_are_held_and_cached_afterwards():
    pages = Kvcached(65_536, CACHED)  # 64 pages of 64 blocks
    assert place(pages, 1, (SYSTEM,), 70) == 0
    assert place(pages, 2, (SYSTEM,), 70) == 64
    assert (pages.used_slots, pages.shared_tokens, pages.cached_slots) == (96, 64, 0)
    pages.release(1)
    assert (pages.used_slots, pages.shared_tokens, pages.cached_slots) == (80, 0, 0)
    pages.release(2)
    assert (pages.used_slots, pages.cached_slots) == (0, 64)
    assert pages.idle_slots == 1_024 - 64
    assert [region.start for region in pages.regions() if region.cached] == [0, 16, 32, 48]
    assert place(pages, 3, (SYSTEM,), 70) == 64


def test_answers_are_kept_too_although_nobody_will_ask_for_them():
    pages = Kvcached(65_536, CACHED)
    place(pages, 1, (SYSTEM,), 100)  # 4 blocks that others may have, 2 full ones that nobody else has
    pages.release(1)
    assert (pages.cached_slots, found(pages, (SYSTEM,), own=1)) == (96, 64)


def test_beyond_the_bound_whole_pages_go_first():
    pages = Kvcached(65_536, CACHED, most_kept_tokens=1_024)
    place(pages, 1, ((1, 0, 512),), 512)  # half of page 0
    place(pages, 2, ((2, 0, 512),), 512)  # the other half
    place(pages, 3, ((3, 0, 1_024),), 1_024)  # page 1
    pages.release(1)
    pages.release(3)
    # 1,536 are too many by 512: page 1 holds more than that, so the oldest text goes, from its end
    assert pages.cached_slots == 1_024
    assert (found(pages, ((1, 0, 512),)), found(pages, ((3, 0, 1_024),))) == (0, 1_024)
    pages.release(2)
    # too many by 512 again: now page 0 holds nothing but the 512 of the last text
    assert (found(pages, ((2, 0, 512),)), found(pages, ((3, 0, 1_024),))) == (0, 1_024)
    assert len(pages.blocks.pool.reserved) == 1


def test_nothing_is_kept_where_the_bound_is_zero_and_everything_without_one():
    for most, kept in ((0, 0), (-1, 20_000)):
        pages = Kvcached(65_536, CACHED, most_kept_tokens=most)
        place(pages, 1, ((1, 0, 20_000),), 20_000)
        pages.release(1)
        assert pages.cached_slots == kept


def test_who_is_evicted_finds_what_is_left_of_it():
    pages = Kvcached(65_536, CACHED)
    place(pages, 1, (SYSTEM,), 200)
    pages.evict(1)
    assert (found(pages, (SYSTEM,), own=1), found(pages, (SYSTEM,), own=2)) == (192, 64)
    match = pages.match((SYSTEM,), 1, 199)
    assert pages.admit_after(match, 5, 200, 200)
    assert (match.tokens, pages.cached_slots) == (192, 0)
    pages.fill(5, 200)
    pages.release(5)
    assert (pages.cached_slots, found(pages, (SYSTEM,), own=1)) == (192, 64)


def test_when_blocks_are_short_the_oldest_goes():
    pages = Kvcached(2_048, CACHED, most_kept_tokens=-1)  # 2 pages
    place(pages, 1, ((1, 0, 512),), 512)
    place(pages, 2, ((2, 0, 512),), 512)
    pages.release(2)
    pages.release(1)
    place(pages, 3, ((3, 0, 1_200),), 1_200)  # 1,024 are free
    assert (found(pages, ((2, 0, 512),)), found(pages, ((1, 0, 512),))) == (512 - 176, 512)


def test_mistakes_are_told():
    pages = Kvcached(65_536, CACHED)
    place(pages, 1, (SYSTEM,), 70)
    with pytest.raises(InvariantError, match="cannot be placed twice"):
        pages.admit(1, 5, 5)
    for call in (pages.release, pages.evict):
        with pytest.raises(InvariantError, match="holds nothing"):
            call(7)


class Caller:
    """Makes random calls with texts that begin alike."""

    def __init__(self, pages, seed):
        self.pages, self.random = pages, Random(seed)
        self.tokens: dict[int, int] = {}
        self.asked: dict[int, tuple[int, tuple]] = {}  # of each sequence: its name and its text
        self.away: list[tuple[int, tuple, int]] = []
        self.hits = self.refused = self.evicted = 0

    def come(self, seq):
        """A new sequence, or one that was evicted, or refused."""
        random, pages = self.random, self.pages
        if self.away and random.random() < 0.5:
            own, content, tokens = self.away.pop()
        else:
            shared = random.choice((0, 16, 100, 300))
            own, content = seq, ((random.randint(0, 3), 0, shared), (1_000 + seq, 0, 40)) if shared else ()
            tokens = max(random.randint(1, 600), shared + 41)
        match = pages.match(content, own, tokens - 1)
        foretold = pages.can_admit_after(match, tokens, tokens)
        assert pages.admit_after(match, seq, tokens, tokens) == foretold
        if foretold:
            self.hits += match.tokens
            self.tokens[seq], self.asked[seq] = tokens, (own, content)
            pages.fill(seq, tokens)
        else:
            self.refused += 1
            self.away.append((own, content, tokens))

    def grow(self, seq):
        """Some tokens more, if there is room."""
        more = self.tokens[seq] + self.random.randint(1, 100)
        if self.pages.grow(seq, more):
            self.tokens[seq] = more
            self.pages.fill(seq, more)

    def leave(self, seq):
        """For good, or to come back."""
        tokens = self.tokens.pop(seq)
        if self.random.random() < 0.3:
            self.pages.evict(seq)
            self.away.append((*self.asked[seq], tokens))
            self.evicted += 1
        else:
            self.pages.release(seq)

    def call(self, seq):
        """One of these, and the end of a step."""
        luck = self.random.random()
        if luck < 0.5 or not self.tokens:
            self.come(seq)
        else:
            (self.grow if luck < 0.75 else self.leave)(self.random.choice(list(self.tokens)))
        self.pages.after_step(self.tokens)


def check_books(pages, tokens):
    """Every slot is of one kind, and shared tokens are what the tables say."""
    regions = list(pages.regions())
    kinds = {
        "used_slots": [region for region in regions if region.owners],
        "cached_slots": [region for region in regions if region.cached],
        "idle_slots": [region for region in regions if region.idle],
    }
    for name, found_there in kinds.items():
        assert getattr(pages, name) == sum(region.size for region in found_there), name
    total = pages.ledger(tokens, tokens, 16).total
    assert total == pages.capacity_slots == sum(region.size for region in regions)
    held_twice = sum(len(region.owners) - 1 for region in kinds["used_slots"])
    assert pages.shared_tokens == held_twice * pages.block_slots


@pytest.mark.parametrize("most_kept", [-1, 0, 700])
@pytest.mark.parametrize("options", [CACHED, STRADDLING])
def test_books_are_kept_whatever_is_called(options, most_kept):
    """Also while evicted sequences come back and find their own blocks; at the end all is given back."""
    for seed in range(3):
        pages = Kvcached(5_000, options, most_kept)
        caller = Caller(pages, seed)
        for seq in range(150):
            caller.call(seq)
            check_books(pages, caller.tokens)
            assert most_kept < 0 or pages.cached_slots <= most_kept // 16 * pages.block_slots
        assert min(caller.refused, caller.evicted, caller.hits) > 0
        for seq in caller.tokens:
            pages.release(seq)
        assert (pages.used_slots, pages.shared_tokens, pages.prefixes.counts) == (0, 0, {})


def test_a_block_that_fits_no_page_is_refused_with_the_largest_that_does():
    sizes = Options(token_bytes=4096, layers=1, kv_heads=8, head_dim=128)  # 2 KiB a token in K, and in V
    assert Kvcached(65_536, sizes._replace(block_size=1024)).most_blocks == 64
    with pytest.raises(ValueError, match="block_size must be at most 1,024, so that a block fits a page"):
        Kvcached(65_536, sizes._replace(block_size=2048))
