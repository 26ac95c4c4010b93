"""Tests an allocator with random calls; InvariantError names the broken rule of the contract.

    check_allocator(Mine)                                # a class whose only argument is the capacity
    check_allocator(lambda slots: Mine(slots, fit="best"), seed=7, arenas=[100])

Two equal allocators take the same random walk (allocators/walk.py), and every step is checked against the
rules (allocators/rules.py).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random

from kvsim.allocators.base import Allocator, InvariantError
from kvsim.allocators.options import Options
from kvsim.allocators.rules import RULES, same_calls_give_same_addresses
from kvsim.allocators.steps import Step
from kvsim.allocators.walk import Walk

__all__ = ("ARENAS", "RULES", "check", "check_allocator", "same_calls_give_same_addresses", "try_class")

ARENAS = (15_744, 4_096, 1_000, 37)


def check(rules: Iterable[Callable[[Step], str]], step: Step) -> None:
    """Raise InvariantError for the first rule that a step breaks."""
    for rule in rules:
        complaint = rule(step)
        if complaint:
            raise InvariantError(f"{rule.__name__}: {step.call}: {complaint}")


def check_allocator(
    make: Callable[[int], Allocator], seed: int = 0, arenas: Sequence[int] = ARENAS, calls: int = 300
) -> None:
    """Test an allocator with random calls; raise at the first broken rule of the contract.

    Parameters
    ----------
    make : callable
        Takes a capacity in slots; returns a new, empty allocator.
    seed : int
        Seed of the calls: the same seed makes the same calls.
    arenas : sequence of int
        Capacities to try; powers of two and others.
    calls : int
        Random calls per arena.

    Raises
    ------
    InvariantError
        Names the rule, the call and the numbers that contradict it.
    """
    for arena in arenas:
        twins = (Walk(make(arena), Random(seed), calls), Walk(make(arena), Random(seed), calls))
        for step, again in zip(*twins, strict=True):
            check(RULES, step)
            same_calls_give_same_addresses(step, again)


def try_class(allocator: type[Allocator], calls: int = 300, seed: int = 0) -> list[int]:
    """Test a class with random calls: returns the arenas on which every rule held.

    Raises
    ------
    InvariantError
        As `check_allocator`.
    ValueError
        The class cannot be built on any of the arenas.
    """
    build = partial(allocator.from_options, options=Options())
    arenas, refused = [], ""
    for slots in ARENAS:
        try:
            build(slots)
            arenas.append(slots)
        except (TypeError, ValueError) as error:  # some arenas are too small for large blocks
            refused = str(error)
    if not arenas:
        raise ValueError(refused)
    check_allocator(build, seed, arenas, calls)
    return arenas
