"""Papers without a server: a closed form, or one mechanism of an allocator, from the numbers of a data file.

A figure says `reads = "mechanism"` and `measure = NAME`; the `arguments` of its cells are the measure's own.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvsim.allocators.llama import search
from kvsim.allocators.llama.defrag import most_moves, moves_of

Values = dict[str, float | None]


def uniform_waste(kinds: Sequence[Mapping[str, int]], tokens: int) -> Values:
    """Memory for `tokens` in every layer, of which each of the `layers` of a kind needs some `tokens` only.

    waste = 1 - sum(layers * tokens of each kind) / (all layers * tokens), in percent.
    """
    layers = sum(kind["layers"] for kind in kinds)
    needed = sum(kind["layers"] * kind["tokens"] for kind in kinds)
    return {"waste": 100 * (1 - needed / (layers * tokens))}


def graph_moves(nodes: int, layers: int) -> Values:
    """Runs of cells that one defragmentation moves at most."""
    return {"moves": most_moves(nodes, layers)}


def interleaved(
    *, cells: int, lanes: int, tokens: int, gone: int, prompt: int, most: int, in_a_row: bool = True
) -> Values:
    """Lanes that decode side by side fill the cells in turns; some are gone; then a prompt comes.

    Returns
    -------
    dict
        `free` cells; the `longest` row of them; whether the prompt is `refused`, which wants a row, or any
        cells; defragmentations of `most` moves until it finds a row (`rounds`).
    """
    empty = bytearray(b"\1" * cells)
    for cell in range(lanes * tokens):
        empty[cell] = cell % lanes < gone
    free, longest = empty.count(1), search.longest(empty)
    rounds = 0
    while free >= prompt > search.longest(empty):
        for source, to, length in moves_of(empty, cells - free, most):
            empty[to : to + length] = bytes(length)
            empty[source : source + length] = b"\1" * length
        rounds += 1
    refused = float(prompt > (longest if in_a_row else free))
    return {"free": free, "longest": longest, "refused": refused, "rounds": rounds}


MEASURES: dict[str, Callable[..., Values]] = {
    "uniform-waste": uniform_waste,
    "graph-moves": graph_moves,
    "interleaved": interleaved,
}


def measured(name: str, arguments: Mapping[str, Any]) -> Values:
    """What a measure finds."""
    return MEASURES[name](**arguments)
