"""A small allocator that uses the rare parts of the contract: idle pages, calls to the driver, work after
steps, a bound on sequences. And its broken relatives."""

from kvsim.allocators.base import Allocator, Holdings, Region

HELD, IDLE, FREE = "held", "idle", "free"


class Mapped(Allocator):
    """Pages of 8 slots, mapped one by one; freed pages stay mapped until the hook unmaps them.

    After a step, each sequence that is nearly full gets a page in advance, and one idle page is unmapped.
    """

    idles = True
    page = 8

    def __init__(self, capacity_slots, most=12):
        pages = capacity_slots // self.page
        super().__init__(pages * self.page)
        self.most_sequences, self.map_ns, self.unmap_ns = most, 900_000, 300_000
        self._state = [FREE] * pages
        self._rows = Holdings()

    def _pages(self, tokens):
        return -(-tokens // self.page)

    def slots_needed(self, tokens, bound):
        return self._pages(tokens) * self.page

    def can_admit(self, tokens, bound):
        return len(self._rows) < self.most_sequences and self.slots_needed(tokens, bound) <= self.free_slots

    def admit(self, seq, tokens, bound):
        self._rows.expect_new(seq, tokens)
        if not self.can_admit(tokens, bound):
            return False
        self._rows[seq] = []
        self._allocate(seq, self._pages(tokens))
        return True

    def capacity(self, seq):
        return len(self._rows[seq]) * self.page

    def grow(self, seq, tokens):
        missing = self._pages(tokens) - len(self._rows[seq])
        if missing * self.page > self.free_slots:
            return False
        self._allocate(seq, max(missing, 0))
        return True

    def release(self, seq):
        for page in self._rows.pop(seq, None) or self._nothing(seq):
            self._state[page] = IDLE
            self.idle_slots += self.page
            self.used_slots -= self.page

    def _nothing(self, seq):
        raise self._rows.holds_nothing(seq)

    def _allocate(self, seq, count):
        for _ in range(count):
            kind = IDLE if IDLE in self._state else FREE
            page = self._state.index(kind)
            self.idle_slots -= self.page * (kind == IDLE)
            self.maps += kind == FREE
            self._state[page] = HELD
            self._rows[seq].append(page)
            self.used_slots += self.page

    def after_step(self, lengths):
        for seq, tokens in lengths.items():
            if self.capacity(seq) - tokens < 2 and FREE in self._state:
                self._allocate(seq, 1)
        if IDLE in self._state:
            self._state[self._state.index(IDLE)] = FREE
            self.idle_slots -= self.page
            self.unmaps += 1

    def regions(self):
        owners = {page: (seq, at) for seq, row in self._rows.items() for at, page in enumerate(row)}
        for page, state in enumerate(self._state):
            seq, at = owners.get(page, (None, 0))
            held = () if seq is None else (seq,)
            yield Region(page * self.page, self.page, held, at * self.page, idle=state == IDLE)


class Forward(Mapped):
    """Like Mapped, without the hook: unmaps freed pages immediately, so that steps wait for it."""

    idles = False
    after_step = None

    def release(self, seq):
        pages = self._rows.pop(seq, None) or self._nothing(seq)
        for page in pages:
            self._state[page] = FREE
        self.used_slots -= len(pages) * self.page
        self.unmaps += len(pages)


class Packed(Forward):
    """Keeps its pages together: the last pages move into the holes that a release leaves."""

    moves_on_release = True

    def release(self, seq):
        super().release(seq)
        places = [(row, at) for row in self._rows.values() for at in range(len(row))]
        last_first = sorted(places, key=lambda place: -place[0][place[1]])
        for row, at in last_first:
            hole = self._state.index(FREE) if FREE in self._state else len(self._state)
            if hole < row[at]:
                self._state[hole], self._state[row[at]] = HELD, FREE
                row[at] = hole
                self.copied_slots += self.page


# -- broken ----------------------------------------------------------------------------------------


class HidesItsIdlePages(Mapped):
    idles = False


class ForgetsToMarkIdleRegions(Mapped):
    def regions(self):
        for region in super().regions():
            yield region._replace(idle=False)


class MarksHeldPagesIdle(Mapped):
    def regions(self):
        for region in super().regions():
            yield region._replace(idle=True)


class SeatsOneTooMany(Mapped):
    def can_admit(self, tokens, bound):
        return len(self._rows) <= self.most_sequences and self.slots_needed(tokens, bound) <= self.free_slots


class CallsIdlePagesExternal(Mapped):
    def external_slots(self, need):
        return self.free_slots


class CountsCallsDown(Mapped):
    def after_step(self, lengths):
        super().after_step(lengths)
        self.maps = max(self.maps - 1, 0)


class MapsWhatItPromised(Mapped):
    """Promises pages that are not mapped yet."""

    growth_unit = 8

    def growth_budget(self):
        return self.free_slots // self.page


class GivesUnasked(Mapped):
    """Sequences grow by pages, but get some after a step."""

    growth_unit = 8


class MovesInSecret(Packed):
    moves_on_release = False


class MapsBeforeItRefuses(Mapped):
    def grow(self, seq, tokens):
        self._rows[seq]
        self.maps += 1
        return super().grow(seq, tokens)


class TakesTheLastPageInTheHook(Mapped):
    def after_step(self, lengths):
        super().after_step(lengths)
        for seq in list(lengths)[:1]:
            self._rows[seq].clear()


BROKEN = [
    (HidesItsIdlePages, "idle_slots_are_declared"),
    (ForgetsToMarkIdleRegions, "slots_add_up"),
    (MarksHeldPagesIdle, "slots_add_up"),
    (SeatsOneTooMany, "sequences_are_bounded"),
    (CallsIdlePagesExternal, "slots_add_up"),
    (CountsCallsDown, "work_only_grows"),
    (MapsWhatItPromised, "promises_are_kept"),
    (GivesUnasked, "steady_growth_is_asked_for"),
    (MovesInSecret, "work_only_grows"),
    (MapsBeforeItRefuses, "refusals_change_nothing"),
    (TakesTheLastPageInTheHook, "slots_add_up"),
]
