"""The family tree of allocators, and a card for one: its idea, its waste, and its memory in an example.

    blocks: fixed blocks anywhere in memory, found through a table
    ├─ paged     a block table for each sequence; blocks are shared, copied on write
    │            wastes less than one block; nothing between sequences
    │            vLLM, nano-vLLM. PagedAttention, SOSP '23

`python -m kvsim.reports.zoo docs/zoo.md docs/zoo/*.md` regenerates the tables and pictures in the docs.

The example is the same for all: three sequences arrive, one leaves, a fourth arrives while the first grows.

    A, B, C come   AAAAAAAAAAaaBBBBBBbbCCCCCCCCCccc........
"""

from collections import Counter
from collections.abc import Iterator
from textwrap import wrap

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from kvsim.allocators import ALLOCATORS, FAMILIES
from kvsim.allocators.base import Allocator
from kvsim.allocators.options import Options
from kvsim.reports.listing import card_of, own_options
from kvsim.reports.pages import rewrite, with_blocks, with_table
from kvsim.sim.deployment.registry import allocator_class

OLD = ("contiguous", "dynamic", "buddy", "paged", "radix")
"""Allocators whose cards are on the page of allocators."""
CELLS = 64
"""Characters in a drawing of the arena."""
STORY = (
    ("A, B, C come", (("A", 10, 18), ("B", 6, 12), ("C", 9, 14))),
    ("B ends", (("B", 0, 0),)),
    ("D; A grows", (("D", 8, 12), ("A", 15, 18))),
)
"""Each event, and for each affected sequence: its tokens now (0 if it ends), and its limit."""


def families() -> dict[str, list[str]]:
    """Each non-empty family -> its members' names, in registry order."""
    found: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name in ALLOCATORS:
        found[allocator_class(name).family].append(name)
    return {family: names for family, names in found.items() if names}


class FamilyTree:
    """All allocators by family, as wide as the terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        start = max(map(len, ALLOCATORS)) + 5
        for family, names in families().items():
            head = family
            for line in wrap(FAMILIES[family], max(20, options.max_width - start)):
                yield Text.assemble((head.ljust(start), "bold"), (line, "italic"))
                head = ""
            for name in names:
                found, last = allocator_class(name), name == names[-1]
                stem, left = ("   " if last else "│  "), f"{'└─ ' if last else '├─ '}{name}"
                for text, style in (
                    (found.idea, ""),
                    (f"wastes {found.wastes}", "yellow"),
                    (f"{found.used_by}. {found.source}", "dim"),
                ):
                    for line in wrap(text, max(20, options.max_width - start)):
                        yield Text.assemble(
                            (left.ljust(start), "bold" if name in left else ""), (line, style)
                        )
                        left = stem


def card(name: str) -> str:
    """A description of one allocator, and its memory in the example."""
    found = allocator_class(name)
    family = f"{found.family}: {FAMILIES[found.family]}" if found.family else ""
    facts = {"family": family, "idea": found.idea, "wastes": found.wastes, "used by": found.used_by}
    facts["source"] = found.source
    return card_of(name, facts, *own_options(found.declares), "", *drawn(found))


def drawn(allocator: type[Allocator]) -> list[str]:
    """The arena after each event; capitals hold tokens, small letters are allocated but empty."""
    for scale in (1, 4, 16, 64, 256, 1024, 4096):
        try:
            lines = list(_told(allocator, scale))
        except ValueError:  # the arena is too small for the allocator
            continue
        mapped = allocator.idles and not allocator.own_page_sizes
        if mapped and scale < 4096 and any("no room" in line for line in lines):
            continue  # its pages are too large
        each = f", each of {scale:,}" if scale > 1 else ""
        idle = "; - idle" if allocator.idles else ""
        return [*lines, f"{CELLS} slots{each}{idle}: A holds a token, a is empty, : cached, . free"]
    return []


def _told(allocator: type[Allocator], scale: int) -> Iterator[str]:
    arena = allocator.from_options(CELLS * scale, Options(block_size=4 * scale))
    lengths: dict[int, int] = {}
    for title, changes in STORY:
        refused = []
        for letter, tokens, bound in changes:
            seq = ord(letter)
            if not tokens:
                if lengths.pop(seq, 0):
                    arena.release(seq)
                continue
            wanted = tokens * scale
            done = arena.grow(seq, wanted) if seq in lengths else arena.admit(seq, wanted, bound * scale)
            if done:
                lengths[seq] = wanted
            else:
                refused.append(f"{letter} finds no room")
        yield f"{title:14}{_picture(arena, lengths)}{'  ' if refused else ''}{', '.join(refused)}"


def _picture(arena: Allocator, lengths: dict[int, int]) -> str:
    """The arena as letters, one per cell: the kind of most of its slots."""
    width = max(1, -(-arena.capacity_slots // CELLS))
    counts: list[Counter[str]] = [Counter() for _ in range(-(-arena.capacity_slots // width))]
    for start, size, kind in _pieces(arena, lengths):
        for cell in range(start // width, -(-(start + size) // width)):
            low, high = max(start, cell * width), min(start + size, (cell + 1) * width)
            counts[cell][kind] += high - low
    return "".join(count.most_common(1)[0][0] for count in counts)


def _pieces(arena: Allocator, lengths: dict[int, int]) -> Iterator[tuple[int, int, str]]:
    for region in arena.regions():
        if not region.owners:
            yield region.start, region.size, ":" if region.cached else "-" if region.idle else "."
            continue
        letter, filled = chr(region.owners[0]), region.filled(lengths)
        yield region.start, filled, letter
        yield region.start + filled, region.size - filled, letter.lower()


def with_pictures(text: str) -> str:
    """A page of the docs with its tables and pictures of arenas regenerated.

    A line `<!-- arena: NAME -->` precedes a text block, `<!-- allocators -->` a table.
    """
    drawn_too = with_blocks(text, "arena", lambda name: drawn(allocator_class(name)))
    return with_table(drawn_too, "allocators", _table())


def _table() -> list[str]:
    rows = ["| allocator | idea | what it wastes | who uses it |", "|---|---|---|---|"]
    for family, names in families().items():
        rows.append(f"| **{family}** | *{FAMILIES[family]}* | | |")
        for name in names:
            found = allocator_class(name)
            page = "allocators.md" if name in OLD else f"zoo/{family}.md"
            rows.append(f"| [`{name}`]({page}#{name}) | {found.idea} | {found.wastes} | {found.used_by} |")
    return rows


if __name__ == "__main__":
    rewrite(with_pictures)
