"""What unlike layers hold, in slots: the tables of each sequence, each group, each kind of layers, and all.

    full     | a | b | c | d |      a table of 4 pages, all held
    window   | . | . | e | f |      a table of 4 pages: 2 held, 2 *expired* (freed behind the window)

The pools count their pages (memory.py), and so all states; the tables of attention groups are counted here. A
finished sequence may hold its pages for a while: its tables are then *dead*, without what was freed.
"""

from collections.abc import Callable, Mapping, Sequence

from kvsim.allocators.arena import Slots
from kvsim.allocators.base import Allocator
from kvsim.allocators.hybrid.memory import Memory
from kvsim.allocators.hybrid.pool import NULL
from kvsim.allocators.hybrid.tables import GroupTables
from kvsim.allocators.options import kinds_of
from kvsim.allocators.records import Holdings

Finals = Callable[[], Mapping[int, int]]
"""Gives the final token counts of the sequences that have slots which will never be written."""


class Counted:
    """What a sequence was last counted with: slots of its tables by group, of its pages, and expired ones."""

    __slots__ = ("expired", "held", "retired", "tables")

    def __init__(self, groups: int) -> None:
        self.tables, self.held, self.expired, self.retired = [0] * groups, 0, 0, False


class TableCounts:
    """Slots in the tables of all sequences, given those of a page of each group (`sizes`).

    Attributes
    ----------
    token_slots : list of int
        Slots of a token in each group; 0: a page is a state.
    slots_per_token : int
        Slots of a token in all groups.
    tables, dead : list of int
        Slots of each group's tables, and those among them of finished sequences.
    held : int
        Slots of all pages in tables, each counted once per sequence that holds it.
    expired : int
        Slots that living sequences have freed.
    """

    def __init__(self, groups: Sequence[GroupTables], sizes: Sequence[int]) -> None:
        self._groups, self._sizes = groups, sizes
        self.token_slots = [
            0 if tables.of_state else size // tables.block_size
            for tables, size in zip(groups, sizes, strict=True)
        ]
        self.slots_per_token = sum(self.token_slots)
        self._attention = [at for at, tables in enumerate(groups) if not tables.of_state]
        self._one_block = len({groups[at].block_size for at in self._attention}) == 1
        self.tables, self.dead = [0] * len(groups), [0] * len(groups)
        self.held = self.expired = 0
        self._counted: Holdings[Counted] = Holdings()

    # -- changes ------------------------------------------------------------------------------

    def place(self, seq: int) -> None:
        """Start to count a new sequence."""
        self._counted[seq] = Counted(len(self._groups))
        self.settle(seq)

    def settle(self, seq: int) -> None:
        """Count the tables of a sequence again: they may have changed."""
        counted, sizes = self._counted[seq], self._sizes
        expired = held = 0
        for at in self._attention:
            table, size = self._groups[at].tables[seq], sizes[at]
            freed, slots = table.count(NULL) * size, len(table) * size
            expired += freed
            held += slots - freed
            if slots != counted.tables[at]:
                self.tables[at] += slots - counted.tables[at]
                counted.tables[at] = slots
        self.held += held - counted.held
        self.expired += expired - counted.expired
        counted.held, counted.expired = held, expired

    def retire(self, seq: int) -> int:
        """Count only what a finished sequence still holds; returns its slots."""
        counted = self._counted[seq]
        self.expired -= counted.expired
        counted.expired, counted.retired = 0, True
        for at in self._attention:
            freed = self._groups[at].tables[seq].count(NULL) * self._sizes[at]
            counted.tables[at] -= freed
            self.tables[at] -= freed
            self.dead[at] += counted.tables[at]
        return counted.held

    def release(self, seq: int) -> None:
        """Stop counting a sequence."""
        counted = self._counted.pop(seq)
        for at, slots in enumerate(counted.tables):
            self.tables[at] -= slots
            self.dead[at] -= slots * counted.retired
        self.held -= counted.held
        self.expired -= counted.expired

    # -- empty slots --------------------------------------------------------------------------

    def surplus(self, seq: int, tokens: int) -> int:
        """Slots beyond `tokens`, over the groups that have any; negative: what all groups lack together."""
        if self._one_block:  # tables of all groups are equally long
            tables = self._groups[self._attention[0]]
            return (len(tables.tables[seq]) * tables.block_size - tokens) * self.slots_per_token
        left = self._surpluses(seq, tokens)
        return sum([each for each in left if each > 0]) or sum(left)

    def _surpluses(self, seq: int, tokens: int) -> list[int]:
        groups, slots = self._groups, self.token_slots
        return [
            (len(groups[at].tables[seq]) * groups[at].block_size - tokens) * slots[at]
            for at in self._attention
        ]

    def never_written(self, internal: int, finals: Finals) -> Sequence[int]:
        """Slots of each group that will never be written, `internal` in all: in dead tables, or at ends."""
        if self._one_block:  # tables of all groups are equally long
            tokens = (internal - sum(self.dead)) // self.slots_per_token
            return [dead + tokens * slots for dead, slots in zip(self.dead, self.token_slots, strict=True)]
        never = self.dead[:]
        for seq, final in finals().items():
            if not self._counted[seq].retired:
                for at, slots in zip(self._attention, self._surpluses(seq, final), strict=True):
                    never[at] += max(0, slots)
        return never


class KindCounts:
    """What each kind of layers holds: the sums over its groups, as `InGroups` wants them (protocols.py).

    Attributes
    ----------
    kinds : list of (str, int)
        The name of each kind, and the slots of a token in all its groups.
    """

    def __init__(self, layers: Sequence[str], memory: Memory, tables: TableCounts) -> None:
        per_token = dict.fromkeys(kinds_of(layers), 0)
        for name, slots in zip(layers, tables.token_slots, strict=True):
            per_token[name] += slots
        self.kinds = list(per_token.items())
        self._kind = [list(per_token).index(name) for name in layers]
        self._memory, self._tables = memory, tables

    def now(self, internal: int, finals: Finals) -> Sequence[int]:
        """The fields of `Held`, each for all kinds."""
        used, tables, never, cached, idle = [[0] * len(self.kinds) for _ in range(5)]
        memory = self._memory
        columns = self._tables.tables, memory.sizes, memory.used_by, memory.kept_by, memory.idle_by
        for kind, slots, size, count, kept, empty in zip(self._kind, *columns, strict=True):
            used[kind] += count * size
            cached[kind] += kept * size
            idle[kind] += empty * size
            tables[kind] += slots
        if internal:
            for kind, slots in zip(self._kind, self._tables.never_written(internal, finals), strict=True):
                never[kind] += slots
        return used + tables + never + cached + idle

    def split(self, counts: Sequence[int]) -> Sequence[Slots]:
        """These fields, kind by kind."""
        kinds = len(self.kinds)
        used, tables, never, cached, idle = [counts[at * kinds : (at + 1) * kinds] for at in range(5)]
        return list(zip(used, tables, never, cached, idle, strict=True))


class CountedGroups(Allocator):
    """An allocator for groups of layers, as far as it counts what they hold.

    Parameters
    ----------
    layers : sequence of str
        The name of each group's layers.
    memory : Memory
        The pools, and where their pages lie.
    tables : sequence of GroupTables
        The block tables of each group.

    Attributes
    ----------
    kinds : list of (str, int)
        The kinds of layers, with the slots of a token in all layers of each.
    """

    def __init__(self, layers: Sequence[str], memory: Memory, tables: Sequence[GroupTables]) -> None:
        super().__init__(memory.slots)
        self.memory = memory
        self.pools = memory.apart(layers)
        self._states = [at for at, each in enumerate(tables) if each.of_state]
        self._counts = TableCounts(tables, memory.sizes)
        self._by_kind = KindCounts(layers, memory, self._counts)
        self.slots_per_token, self.kinds = self._counts.slots_per_token, self._by_kind.kinds

    def _recount(self) -> None:
        """Take over the counts of pools and tables."""
        memory, tables = self.memory, self._counts
        used, states = memory.slots_of(memory.used_by), 0
        for at in self._states:
            states += memory.used_by[at] * memory.sizes[at]
        self.used_slots, self.state_slots, self.cached_slots = used, states, memory.slots_of(memory.kept_by)
        self.shared_tokens, self.expired_slots = tables.held - (used - states), tables.expired
        if self.idles:
            self.idle_slots = memory.slots_of(memory.idle_by)

    def retire(self, seq: int) -> int:
        """Count only what a finished sequence still holds: its tables lose what was freed."""
        held = self._counts.retire(seq)
        self.expired_slots = self._counts.expired
        return held

    def surplus(self, seq: int, tokens: int) -> int:
        return self._counts.surplus(seq, tokens)

    def logical_slots(self) -> int:
        return self._counts.held + self.state_slots

    def kind_counts(self, internal: Callable[[], int], finals: Finals) -> Callable[[], Sequence[int]]:
        return lambda: self._by_kind.now(internal(), finals)

    def held_by_kind(self, used: int, internal: int, counts: Sequence[int]) -> Sequence[Slots]:
        return self._by_kind.split(counts)
