"""`Forked` says of sequences that forked what `Claims` counts block by block."""

from itertools import count
from random import Random

import pytest

from kvsim.allocators.claims import Claims, Forked
from kvsim.allocators.records import Holdings, InvariantError

SIZE = 4


class Memory:
    """Block tables, and both ways to know who shares what; blocks are never used twice."""

    def __init__(self):
        self.tables = Holdings()
        self.tokens = {}
        self.both = [kind(SIZE, self.tables) for kind in (Claims, Forked)]
        self.blocks = count(100)

    def agree(self):
        counted, forked = self.both
        assert forked.references() == counted.references()
        assert (forked.tokens, forked.part_filled) == (counted.tokens, counted.part_filled)

    def admit(self, seq, tokens):
        self.tables[seq] = [next(self.blocks) for _ in range(-(-tokens // SIZE))]
        self.tokens[seq] = tokens

    def fork(self, parent, child):
        for each in self.both:
            self.tables.pop(child, None)
            each.fork(parent, child, self.tokens[parent])
        self.tokens[child] = self.tokens[parent]

    def write(self, seq):
        table, tokens = self.tables[seq], self.tokens[seq]
        if tokens % SIZE == 0:
            table.append(next(self.blocks))
        elif table[-1] in self.both[0].part_filled:
            for each in self.both:
                each.part(seq, table[-1])
            table[-1] = next(self.blocks)
        self.tokens[seq] = tokens + 1

    def leave(self, seq):
        table = self.tables.pop(seq)
        del self.tokens[seq]
        counted, forked = [each.leave(seq, list(table)) for each in self.both]
        assert forked == counted

    def swap(self, seqs):
        """Out to other blocks and back."""
        names = {block: next(self.blocks) for seq in seqs for block in self.tables[seq]}
        filled = {names[b]: n for b, n in self.both[0].part_filled.items() if b in names}
        tables = {seq: [names[block] for block in self.tables[seq]] for seq in seqs}
        tokens = {seq: self.tokens[seq] for seq in seqs}
        for seq in seqs:
            self.leave(seq)
        self.tables.update(tables)
        self.tokens.update(tokens)
        for each in self.both:
            each.count(tables, filled)


@pytest.mark.parametrize("seed", range(30))
def test_forks_writes_leaves_and_swaps_are_known_as_if_counted(seed):
    rng, memory, following = Random(seed), Memory(), count()
    done = dict.fromkeys(("fork", "write", "leave", "swap"), 0)
    for _ in range(120):
        living = list(memory.tables)
        what = rng.choices(("admit", "fork", "write", "leave", "swap"), (1, 6, 12, 3, 1))[0]
        if what == "admit" or not living:
            memory.admit(next(following), rng.randint(1, 13))
            continue
        done[what] += 1
        seq = rng.choice(living)
        if what == "fork":
            memory.fork(seq, next(following))
        elif what == "write":
            memory.write(seq)
        elif what == "leave":
            memory.leave(seq)
        else:
            memory.swap(rng.sample(living, rng.randint(1, len(living))))
        memory.agree()
    assert min(done.values()) > 0
    for seq in list(memory.tables):
        memory.leave(seq)
        memory.agree()
    assert memory.both[1].tokens == 0
    assert memory.both[1].references() == memory.both[1].part_filled == {}


@pytest.mark.parametrize("kind", [Claims, Forked])
def test_who_shares_a_full_last_block_cannot_have_less_in_it(kind):
    tables = Holdings({0: [7, 8]})
    shares = kind(SIZE, tables)
    shares.fork(0, 1, 8)
    with pytest.raises(InvariantError, match="cannot hold 7 tokens"):
        shares.fork(0, 2, 7)
