"""vLLM's pool of blocks with its prefix cache, as plain as can be: a block is known by all text to its end.

    queue     free blocks, the next to be taken first; those that have a text can still be hit
    texts     block -> the tokens from the first to its end, and the `lookahead` ones behind it
    hashed    of each table: how many of its blocks got a text, or were hit

These are rules 5 to 7, 9, 11 and 12 of `../shared/goldens/spec/README.md`.
"""

from kvsim.allocators.base import Ledger


class CachedPages:
    """Blocks of `size` slots.

    Parameters
    ----------
    blocks, size : int
        Number of blocks, and slots of each.
    caches : bool
        Whether blocks can be hit at all.
    lookahead : int
        Tokens behind a block that must be equal too.
    late : int
        The last computed tokens of a sequence, which are not hashed yet.
    drops_last : bool
        Whether the last block of a hit is computed again.
    """

    copied_slots = 0

    def __init__(self, blocks, size, *, caches=True, lookahead=0, late=0, drops_last=False):
        self.blocks, self.size, self.capacity_slots, self.caches = blocks, size, blocks * size, caches
        self.lookahead, self.late, self.drops_last = lookahead, late, drops_last
        self.queue = [*range(blocks)]
        self.tables, self.hashed = {}, {}
        self.texts = {}  # in the order in which the blocks got them

    def slots_needed(self, tokens, bound):
        """Whole blocks."""
        return -(-tokens // self.size) * self.size

    def hit(self, text):
        """The blocks of the longest prefix that is there, without the last token of this text."""
        found = []
        for end in range(self.size, len(text) * self.caches, self.size):
            wanted = text[: end + self.lookahead]
            same = [block for block, its in self.texts.items() if its == wanted]
            if len(wanted) < end + self.lookahead or not same:
                break
            found.append(same[0])
        return found[:-1] if self.drops_last else found

    def fits(self, tokens, hits, spare=0):
        """Whether a new table of this many tokens that begins with `hits` leaves `spare` blocks free."""
        woken = sum(block in self.queue for block in hits)
        return -(-tokens // self.size) - len(hits) + woken + spare <= len(self.queue)

    def enter(self, seq, tokens, hits):
        """A new table, which begins with `hits`; there must be room."""
        self.queue = [block for block in self.queue if block not in hits]
        self.tables[seq], self.hashed[seq] = [*hits], len(hits)
        assert self.grow(seq, tokens)

    def grow(self, seq, tokens):
        """Take the further blocks that this many tokens need, which lose their texts; False: no room."""
        missing = max(-(-tokens // self.size) - len(self.tables[seq]), 0)
        if missing > len(self.queue):
            return False
        taken, self.queue = self.queue[:missing], self.queue[missing:]
        for block in taken:
            self.texts.pop(block, None)
        self.tables[seq] += taken
        return True

    def fill(self, seq, computed, text):
        """The full blocks among the computed tokens get their texts, if all tokens of these are known."""
        full = min(computed - self.late, len(text) - self.late, len(text) - self.lookahead) * self.caches
        for at in range(self.hashed[seq], full // self.size):
            self.texts[self.tables[seq][at]] = text[: (at + 1) * self.size + self.lookahead]
            self.hashed[seq] = at + 1

    def release(self, seq):
        """Free the blocks of no other table, last first: those without a text are taken next, others last."""
        table, hashed = self.tables.pop(seq), self.hashed.pop(seq)
        others = {block for other in self.tables.values() for block in other}
        bare, full = (
            [each for each in reversed(part) if each not in others]
            for part in (table[hashed:], table[:hashed])
        )
        self.queue = bare + self.queue + full

    def forget(self, owner):
        """Nobody will look for texts that end with tokens (*owner, number) any more."""
        self.texts = {block: text for block, text in self.texts.items() if text[-1][:-1] != owner}

    def ledger(self, lengths, finals, need):
        """Every slot by kind; a full block of several tables holds its tokens once."""
        used = self.blocks - len(self.queue)
        shared = sum(map(len, self.tables.values())) - used
        tails = {seq: len(self.tables[seq]) * self.size - length for seq, length in lengths.items()}
        later = sum(min(tail, finals[seq] - lengths[seq]) for seq, tail in tails.items())
        tokens = sum(lengths.values()) - shared * self.size
        cached = sum(block in self.texts for block in self.queue) * self.size
        free = len(self.queue) * self.size - cached
        return Ledger(tokens, later, used * self.size - tokens - later, cached, 0, free, 0)
