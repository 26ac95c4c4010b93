"""The rules of the contract, each checked against one step of a random walk.

    rule(step)  ->  ""                                     the rule holds
                ->  "7 of 64 slots are owned, but ..."     what is wrong, with its numbers

`RULES` has all of them except determinism, which takes two walks. Numbers in brackets refer to the contract
in allocators/base.py.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from kvsim.allocators.base import InvariantError, Region
from kvsim.allocators.steps import NEEDS, State, Step, sums_of


def only_mistakes_raise(step: Step) -> str:
    """A call that the contract allows does not raise."""
    return step.error if step.error and not step.mistake else ""


def mistakes_raise_invariant_error(step: Step) -> str:
    """A forbidden call raises InvariantError (7)."""
    if not step.mistake or step.error.startswith("InvariantError"):
        return ""
    return step.error or f"no error, but {step.outcome!r}"


def refusals_change_nothing(step: Step) -> str:
    """A refused call, a mistake and a query change nothing (1, 7)."""
    refused = step.outcome is False or step.error or step.call.startswith("can_admit")
    if not refused:
        return ""
    if step.frees_when_refused and step.call.startswith("grow(") and step.after.used < step.before.used:
        freed, expired = step.before.used - step.after.used, step.after.expired - step.before.expired
        kept = step.before.capacities == step.after.capacities
        return "" if kept and freed == expired else f"{freed} slots were freed, {expired} expired"
    return _difference(step.before, step.after)


def slots_add_up(step: Step) -> str:
    """Used and free slots sum to the capacity, and the used ones are those that have an owner (2)."""
    state, sums = step.after, sums_of(step.after.regions)
    owned, empty = sums.owned, state.free - state.cached - state.idle
    right = sums.once and state.used == owned and state.free == step.capacity_slots - owned
    right &= min(state.cached, state.idle, empty) >= 0
    right &= (state.cached, state.idle) == (sums.cached, sums.idle)
    external = all(0 <= slots <= empty for slots in state.external)
    if right and external and state.largest <= state.free:
        return ""
    return (
        f"{owned} of {step.capacity_slots} slots are owned, but {state._replace(regions=(), capacities={})}"
    )


def idle_slots_are_declared(step: Step) -> str:
    """Only a class that sets `idles` has idle slots."""
    return f"{step.after.idle} slots are idle" if step.after.idle and not step.idles else ""


def work_only_grows(step: Step) -> str:
    """Copies and driver calls are counted since the start; `release` copies only if declared."""
    before, after = step.before, step.after
    for name in ("copied", "cow", "maps", "unmaps"):
        if getattr(after, name) < getattr(before, name):
            return f"{name} fell from {getattr(before, name)} to {getattr(after, name)}"
    moved = after.copied - before.copied
    if moved and step.call.startswith("release") and not step.moves_on_release:
        return f"{moved} slots were copied, but moves_on_release is False"
    return ""


def steady_growth_is_asked_for(step: Step) -> str:
    """If growth comes in units, a sequence gets room only by asking for it, not from `after_step`."""
    if step.call != "after_step" or not step.growth_unit:
        return ""
    pairs = ((seq, old, step.after.capacities.get(seq)) for seq, old in step.before.capacities.items())
    changed = [f"capacity of sequence {seq} {old} became {new}" for seq, old, new in pairs if old != new]
    return "; ".join(changed)


def sequences_are_bounded(step: Step) -> str:
    """At most `most_sequences` sequences hold something (8)."""
    if step.most_sequences is None or len(step.tokens) <= step.most_sequences:
        return ""
    return f"{len(step.tokens)} sequences hold something, of at most {step.most_sequences}"


def no_slot_has_two_kinds(step: Step) -> str:
    """Regions follow each other without gap or overlap, from 0 to the capacity (2)."""
    sums = sums_of(step.after.regions)
    if sums.gap or sums.end == step.capacity_slots:
        return sums.gap
    return f"regions end at {sums.end} of {step.capacity_slots}"


def capacity_covers_tokens(step: Step) -> str:
    """Tokens <= capacity <= slots owned, for every sequence that holds something and for no other."""
    owned, capacities = sums_of(step.after.regions).of_sequence, step.after.capacities
    if owned.keys() != step.tokens.keys():
        return f"slots are owned by {sorted(owned)}, tokens are held by {sorted(step.tokens)}"
    gone = step.after.expired  # their former owners are unknown
    wrong = [seq for seq, tokens in step.tokens.items() if not tokens <= capacities[seq] <= owned[seq] + gone]
    return "; ".join(
        f"sequence {seq}: {step.tokens[seq]} tokens, capacity {capacities[seq]}, {owned[seq]} slots"
        for seq in wrong
    )


def ledger_sums_to_capacity(step: Step) -> str:
    """Every slot has one kind in the ledger, which counts shared tokens once (2)."""
    if isinstance(step.ledger, str):
        return step.ledger
    tokens = step.slots_per_token * sum(step.tokens.values()) - step.after.shared - step.after.expired
    tokens += step.after.states
    right = step.ledger.total == step.capacity_slots and min(step.ledger) >= 0 and step.ledger.token == tokens
    return "" if right else f"{tokens} of {step.capacity_slots} slots hold a token, but {step.ledger}"


def can_admit_foretells_admit(step: Step) -> str:
    """`admit` does what `can_admit` predicted just before (3)."""
    if step.foretold is None or step.outcome is step.foretold:
        return ""
    return f"can_admit said {step.foretold}, admit {step.outcome!r}"


def no_stays_no(step: Step) -> str:
    """A refused size stays refused until something is released, moved, evicted or expired (3)."""
    if step.moves_in_part:
        return f"moves_in_part, but {step.after.budget} growths are promised" if step.after.budget else ""
    return f"can_admit{step.revived} was refused before, with more room" if step.revived else ""


def an_empty_arena_admits_what_fits(step: Step) -> str:
    """`fits` equals `can_admit` on an empty arena, and nothing that does not fit is ever admitted."""
    if step.fits is None or step.fits == (step.outcome is True) or (step.fits and step.tokens):
        return ""
    return f"fits says {step.fits}, can_admit {step.outcome!r} with {len(step.tokens)} sequences there"


def releasing_all_restores_the_arena(step: Step) -> str:
    """Without sequences, the arena is as it was at first, except for cached and idle slots (4, 8)."""
    if step.tokens:
        return ""
    after, fresh = step.after._replace(copied=0, cow=0, cached=0, idle=0, maps=0, unmaps=0), step.fresh
    if step.idles:  # promises may depend on what is mapped
        after = after._replace(regions=_whole(after.regions), budget=fresh.budget)
        fresh = fresh._replace(regions=_whole(fresh.regions), idle=0)
    return _difference(fresh, after)


def _whole(regions: Sequence[Region]) -> tuple[Region, ...]:
    """The regions without their marks, with adjacent unowned ones joined."""
    found: list[Region] = []
    for region in regions:
        if found and not (region.owners or found[-1].owners):
            found[-1] = found[-1]._replace(size=found[-1].size + region.size)
        else:
            found.append(Region(region.start, region.size, region.owners, region.first))
    return tuple(found)


def promises_are_kept(step: Step) -> str:
    """A promised growth adds exactly one unit, costs one promise, no work, and changes nothing else (6)."""
    before, after, unit = step.before, step.after, step.growth_unit
    if not 0 <= before.budget * unit <= before.free or (before.budget and not unit):
        return f"{before.budget} growths of {unit} are promised, {before.free} slots free"
    if not step.grown:
        return ""
    for seq, units in Counter(step.grown).items():
        if after.capacities[seq] != before.capacities[seq] + units * unit:
            sizes = f"{before.capacities[seq]} to {after.capacities[seq]}"
            return f"sequence {seq} grew from {sizes} by {units} growths of {unit}"
    if after.budget < before.budget - len(step.grown):
        return f"{after.budget} of {before.budget} promises are left after {len(step.grown)} growths"
    names = ("external", "idle", "copied", "maps", "unmaps")
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in names)
    return "; ".join(_changed(name, old, new) for name, old, new in pairs if old != new)


def _difference(before: State, after: State) -> str:
    """The fields in which two states differ."""
    pairs = zip(State._fields, before, after, strict=True)
    return "; ".join(_changed(name, old, new) for name, old, new in pairs if old != new)


def _changed(name: str, old: object, new: object) -> str:
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) > len(NEEDS):
        pairs = zip(old, new, strict=False)
        old, new = next(((a, b) for a, b in pairs if a != b), (len(old), len(new)))
    return f"{name} {old} became {new}"


def same_calls_give_same_addresses(step: Step, again: Step) -> None:
    """Two allocators that got the same calls are equal; InvariantError if not (5)."""
    complaint = _difference(step.after, again.after)
    if complaint or step.outcome != again.outcome:
        raise InvariantError(f"same_calls_give_same_addresses: {step.call}: {complaint or again.outcome}")


RULES: tuple[Callable[[Step], str], ...] = (
    only_mistakes_raise,
    mistakes_raise_invariant_error,
    refusals_change_nothing,
    no_slot_has_two_kinds,
    slots_add_up,
    idle_slots_are_declared,
    work_only_grows,
    steady_growth_is_asked_for,
    sequences_are_bounded,
    capacity_covers_tokens,
    ledger_sums_to_capacity,
    can_admit_foretells_admit,
    no_stays_no,
    an_empty_arena_admits_what_fits,
    releasing_all_restores_the_arena,
    promises_are_kept,
)
