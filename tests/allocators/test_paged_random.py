"""Random calls to `paged`, with and without its prefix cache, beside a model that keeps every token.

The model knows of each block only the text of the whole sequence up to its end, as a tuple of tokens; what
a look-up must find follows from that, and so do references, the order of free blocks and the ledger.
"""

from collections import Counter
from random import Random

import pytest

from kvsim.allocators.options import CacheRules, Order
from kvsim.allocators.paged import Paged

pytestmark = pytest.mark.slow

BLOCK = 4
FAMILIES = 3  # texts that begin alike


def tokens_of(content, own, length):
    """The text of a sequence as a tuple of tokens: what it shares, then its own."""
    text = [(stream, first + i) for stream, first, count in content for i in range(count)]
    return tuple(text + [("own", own, i) for i in range(max(0, length - len(text)))])[:length]


class Story:
    """One arena, the sequences that live in it, and what the model knows of them."""

    def __init__(self, memory, random):
        self.memory, self.random = memory, random
        self.caching = memory.caches
        self.lengths: dict[int, int] = {}  # tokens held by each sequence
        self.filled: dict[int, int] = {}  # tokens that others may find
        self.contents: dict[int, tuple] = {}
        self.own: dict[int, int] = {}
        self.swapped: dict[tuple[int, ...], None] = {}
        self.gone: list[tuple[tuple, int, int]] = []  # evicted: content, own, tokens
        self.next_seq = self.next_own = 0
        self.free = list(memory.free_queue())
        self.known: list[tuple[int, tuple]] = []  # (block, text to its end), in the order of their entry

    # -- the model ----------------------------------------------------------------------------

    def allocate(self, count):
        blocks = self.free[:count]
        del self.free[:count]
        self.known = [(block, text) for block, text in self.known if block not in blocks]
        return blocks

    def find(self, text):
        """The block that a look-up finds for a text."""
        found = [block for block, known in self.known if known == text]
        if not found:
            return None
        return found[-1] if self.memory.prefixes.pool.newest else found[0]

    def enter(self, seq, tokens):
        """The full blocks of the first `tokens` tokens can be found, as far as others may share them."""
        table, text = self.memory.block_table(seq), self.texts_of(seq, tokens)
        shared = sum(length for _, _, length in self.contents[seq]) // BLOCK
        before, full = self.filled[seq] // BLOCK, tokens // BLOCK
        for index in range(before, min(full, shared)):
            if self.memory.prefixes.pool.newest:
                self.known = [k for k in self.known if k[1] != text[: (index + 1) * BLOCK]]
            self.known.append((table[index], text[: (index + 1) * BLOCK]))
        self.filled[seq] = max(tokens, self.filled[seq])

    def texts_of(self, seq, tokens):
        return tokens_of(self.contents[seq], self.own[seq], tokens)

    def give_back(self, table, full):
        """Blocks without an owner are free, in the order of the engine."""
        owned = Counter(block for seq in self.living() for block in self.memory.block_table(seq))
        freed = [block for block in table if not owned[block]]
        hashed = [block for block in table[:full] if not owned[block]]
        order = self.memory.order
        if order is Order.QUEUE:
            self.free += freed[::-1]
        elif order is Order.STACK:
            self.free = freed[::-1] + self.free
        else:
            self.free = [b for b in reversed(freed) if b not in hashed] + self.free + hashed[::-1]

    def living(self):
        return [seq for seq in self.lengths if not any(seq in group for group in self.swapped)]

    # -- calls --------------------------------------------------------------------------------

    def admit(self):
        if self.gone and self.random.random() < 0.5:
            content, own, tokens = self.gone.pop(0)
        else:
            content = ((self.random.randrange(FAMILIES), 0, self.random.randrange(1, 24)),)
            if self.random.random() < 0.3:
                content += ((FAMILIES + self.random.randrange(2), 5, self.random.randrange(1, 10)),)
            if self.random.random() < 0.2:
                content = ()
            own, self.next_own = self.next_own, self.next_own + 1
            tokens = self.random.randrange(2, 40)
        seq, memory = self.next_seq, self.memory
        needed = -(-tokens // BLOCK)
        if not self.caching:
            content, expected, admitted = (), [], memory.admit(seq, tokens, tokens)
        else:
            expected = self.hits(content, own, tokens)
            match = memory.match(content, own, tokens - 1)
            assert match.tokens == len(expected) * BLOCK
            assert memory.can_admit_after(match, tokens, tokens) == (
                needed - sum(b not in self.free for b in expected) <= len(self.free)
            )
            admitted = memory.admit_after(match, seq, tokens, tokens)
        woken = [block for block in expected if block in self.free]
        assert admitted == (needed - len(expected) + len(woken) <= len(self.free))
        if not admitted:
            return
        self.next_seq += 1
        self.free = [block for block in self.free if block not in woken]
        table = expected + self.allocate(needed - len(expected))
        assert memory.block_table(seq) == tuple(table)
        self.contents[seq], self.own[seq], self.filled[seq] = content, own, len(expected) * BLOCK
        self.lengths[seq] = tokens
        if self.caching and self.random.random() < 0.8:
            memory.fill(seq, tokens)
            self.enter(seq, tokens)

    def hits(self, content, own, tokens):
        blocks = []
        text = tokens_of(content, own, tokens)
        for index in range((tokens - 1) // BLOCK):
            block = self.find(text[: (index + 1) * BLOCK])
            if block is None:
                break
            blocks.append(block)
        return blocks

    def grow(self):
        seq = self.pick()
        if seq is None:
            return
        memory, tokens = self.memory, self.lengths[seq] + 1
        table = list(memory.block_table(seq))
        owners = Counter(block for other in self.living() for block in memory.block_table(other))
        copies = tokens <= len(table) * BLOCK and owners[table[-1]] > 1
        takes = tokens > len(table) * BLOCK
        before = memory.cow_copies
        assert memory.grow(seq, tokens) == (not (copies or takes) or bool(self.free))
        if (copies or takes) and not self.free:
            return
        if self.caching and (takes or copies):
            self.enter(seq, tokens - 1)
        if copies:
            table[-1:] = self.allocate(1)
        elif takes:
            table += self.allocate(1)
        assert memory.block_table(seq) == tuple(table)
        assert memory.cow_copies - before == copies
        self.lengths[seq] = tokens

    def fork(self):
        parent = self.pick()
        if parent is None:
            return
        child, self.next_seq = self.next_seq, self.next_seq + 1
        assert self.memory.fork(parent, child, self.lengths[parent])
        self.lengths[child], self.contents[child] = self.lengths[parent], ()
        self.own[child], self.next_own = self.next_own, self.next_own + 1
        self.filled[child] = self.filled[parent]
        assert self.memory.block_table(child) == self.memory.block_table(parent)

    def leave(self, comes_back=False):
        seq = self.pick()
        if seq is None:
            return
        table, tokens = list(self.memory.block_table(seq)), self.lengths[seq]
        own, content = self.own[seq], self.contents[seq]
        if self.caching:
            self.memory.fill(seq, tokens)
            self.enter(seq, tokens)
            self.forget_or_keep(seq, table, comes_back)
        del self.lengths[seq]
        (self.memory.evict if comes_back else self.memory.release)(seq)
        if comes_back:
            self.gone.append((content, own, tokens))
        self.give_back(table, tokens // BLOCK)

    def forget_or_keep(self, seq, table, comes_back):
        """The private blocks of who comes back can be found, of who does not they cannot."""
        own, tokens = self.own[seq], self.lengths[seq]
        if not comes_back:
            self.known = [k for k in self.known if k[1][-1][:2] != ("own", own)]
            return
        shared = sum(length for _, _, length in self.contents[seq]) // BLOCK
        for index in range(shared, tokens // BLOCK):
            if table[index] not in [block for block, _ in self.known]:
                text = self.texts_of(seq, (index + 1) * BLOCK)
                if self.memory.prefixes.pool.newest:
                    self.known = [k for k in self.known if k[1] != text]
                self.known.append((table[index], text))

    def swap(self):
        if self.swapped and self.random.random() < 0.6:
            group = next(iter(self.swapped))
            needed = self.memory.slots_held(group) // BLOCK
            assert self.memory.swap_in(group) == (needed <= len(self.free))
            if needed > len(self.free):
                return
            del self.swapped[group]
            self.allocate(needed)
            assert len({b for seq in group for b in self.memory.block_table(seq)}) == needed
            return
        group = tuple(self.random.sample(self.living(), min(len(self.living()), 2)))
        if not group:
            return
        tables = [list(self.memory.block_table(seq)) for seq in group]
        blocks = {block for table in tables for block in table}
        room = self.memory.host_capacity_slots - self.memory.host_used_slots
        assert self.memory.swap_out(group) == (len(blocks) * BLOCK <= room)
        if len(blocks) * BLOCK <= room:
            self.swapped[group] = None
            self.free = list(self.memory.free_queue())
            for seq in group:
                self.contents[seq], self.filled[seq] = (), 0

    def pick(self):
        living = self.living()
        return self.random.choice(living) if living else None

    # -- what always holds --------------------------------------------------------------------

    def check(self):
        memory, tables = self.memory, {seq: self.memory.block_table(seq) for seq in self.living()}
        owners = Counter(block for table in tables.values() for block in table)
        free = memory.free_queue()
        assert list(free) == self.free
        assert sorted([*owners, *free]) == list(range(memory.num_blocks))  # each block once: owned or free
        assert all(memory.references(block) == count for block, count in owners.items())
        assert memory.used_slots == len(owners) * BLOCK
        assert memory.logical_slots() == sum(owners.values()) * BLOCK
        assert memory.shared_slots() == sum(count > 1 for count in owners.values()) * BLOCK
        lengths = {seq: self.lengths[seq] for seq in tables}
        ledger = memory.ledger(lengths, {seq: length + 3 for seq, length in lengths.items()})
        assert ledger.total == memory.capacity_slots
        assert ledger.token == sum(lengths.values()) - memory.shared_tokens
        if self.caching:
            found = {block for block, _ in self.known}
            assert found == memory.prefixes.known_blocks().keys()
            assert memory.cached_slots == sum(block in found for block in free) * BLOCK
            cached = [
                block
                for region in memory.regions()
                if region.cached
                for block in range(region.start // BLOCK, (region.start + region.size) // BLOCK)
            ]
            assert cached == sorted(block for block in free if block in found)


MEMORIES = {
    "stack": lambda: Paged(24 * BLOCK, BLOCK, Order.STACK, 12 * BLOCK),
    "queue": lambda: Paged(24 * BLOCK, BLOCK, Order.QUEUE, 12 * BLOCK),
    "vllm 0.11": lambda: Paged(24 * BLOCK, BLOCK, Order.QUEUE, 12 * BLOCK, CacheRules()),
    "vllm 0.33": lambda: Paged(24 * BLOCK, BLOCK, Order.HASHED_LAST, 12 * BLOCK, CacheRules()),
    "nano-vllm": lambda: Paged(24 * BLOCK, BLOCK, Order.QUEUE, 12 * BLOCK, CacheRules(newest=True)),
}
CALLS = {
    "alone": ("admit", "admit", "grow", "grow", "grow", "leave", "evict"),
    "forked and swapped": ("admit", "admit", "grow", "grow", "grow", "fork", "leave", "swap"),
}


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("name", MEMORIES)
@pytest.mark.parametrize("seed", range(12))
def test_random_calls_do_what_the_model_says(name, calls, seed):
    random = Random(seed)
    story = Story(MEMORIES[name](), random)
    hits = 0
    for _ in range(400):
        call = random.choice(CALLS[calls])
        if call == "evict":
            story.leave(comes_back=True)
        else:
            getattr(story, call)()
        story.check()
        hits += story.memory.shared_tokens > 0
    assert hits or not (story.caching or "forked" in calls)
    while story.swapped:
        group, _ = story.swapped.popitem()
        for seq in group:
            story.memory.release(seq)
            del story.lengths[seq]
    while story.living():
        story.leave()
    memory = story.memory
    assert memory.used_slots == memory.shared_tokens == memory.host_used_slots == 0
    assert sorted(memory.free_queue()) == list(range(memory.num_blocks))
    assert memory.admit(10**6, memory.capacity_slots, memory.capacity_slots)
    assert memory.cached_slots == 0
