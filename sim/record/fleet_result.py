"""The results of a fleet: its replicas combined, and each one separately.

Integrals of the replicas are added, including the time after a replica's last request, but not time for which
it is dead or switched off. So means over time are those of one replica; multiply by the (mean) number of
replicas for the fleet. Counts are added, and peaks are maxima. If capacities differ, their mean is used;
`beyond` corrects for the difference over time.
"""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import TypeVar

import numpy as np

from kvsim.sim.record import by_kind
from kvsim.sim.record.by_kind import HeldOverTime
from kvsim.sim.record.histogram import Histogram
from kvsim.sim.record.recorder import Result
from kvsim.sim.record.span import Integrals
from kvsim.sim.serving.absences import Absences
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.totals import DraftTotals, TierTotals, UpkeepTotals
from kvsim.sim.workload import Chain, Clients, Int64Column, Workload, gathered

T = TypeVar("T", TierTotals, UpkeepTotals)

ADDED = (
    *("truncated", "step_count", "preemptions", "fragmented_refusals", "copied_slots", "cow_copies"),
    *("hit_tokens", "thrown_tokens", "swap_outs", "swapped_in_blocks", "swapped_out_blocks"),
)
LARGEST = ("end_ps", "max_running", "peak_used_tokens")


def in_turn(results: Sequence[Result]) -> Result:
    """A replica that died and came back: joins the results of its lives in sequence."""
    if len(results) == 1:
        return results[0]
    steps = [result.steps for result in results if result.steps is not None]
    counted, tier = _counted(results), results[-1].tier
    if counted.tier is not None and tier is not None:
        counted.tier.capacity_bytes = tier.capacity_bytes  # in sequence, not in parallel
        counted.tier.peak_bytes = max(result.tier.peak_bytes for result in results if result.tier)
    return replace(
        counted,
        timeline=_behind(_cut([result.timeline for result in results])),
        steps=_behind(steps) if steps else None,
        saturated=_sum([result.saturated for result in results]),
        unsaturated=_sum([result.unsaturated for result in results]),
        step_count=max(result.step_count for result in results),  # each life continues the count
    )


def _cut(timelines: Sequence[dict[str, Int64Column]]) -> list[dict[str, Int64Column]]:
    """Timelines of lives in sequence, each until the next begins; one may end after it was switched off."""
    found = [*timelines]
    for place, following in enumerate(timelines[1:]):
        kept = timelines[place]["time_ps"] <= following["time_ps"][0]
        found[place] = {name: column[kept] for name, column in timelines[place].items()}
    return found


def _behind(tables: Sequence[dict[str, Int64Column]]) -> dict[str, Int64Column]:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def together(
    results: Sequence[Result],
    servers: Sequence[Server],
    absences: Absences,
) -> Result:
    """Combine replicas; the timeline and the step log get an extra column, `replica`."""
    end_ps = max(result.end_ps for result in results)
    capacity = sum(result.capacity_slots for result in results) // len(results)
    saturated = [replace(result.saturated) for result in results]
    unsaturated = [replace(result.unsaturated) for result in results]
    idling: list[HeldOverTime | None] = []
    for place, (result, server, sums) in enumerate(zip(results, servers, unsaturated, strict=True)):
        idle_ps = max(end_ps - result.recorded_ps, 0)
        sums.time_ps += idle_ps - absences.ps(place, end_ps)
        external, cached, idle, shared, _ = server.rest()  # a dead server holds nothing any more
        sums.add_rest(idle_ps, (external, cached, idle, shared, 0))
        idling.append(
            None
            if result.by_kind is None
            else by_kind.rested(result.by_kind, server.memory.abilities.in_groups, idle_ps)
        )
    found = _counted([_with_room(each, absences, place, end_ps) for place, each in enumerate(results)])
    for part_of in (saturated, unsaturated):
        for result, sums in zip(results, part_of, strict=True):
            sums.beyond = (result.capacity_slots - capacity) * sums.time_ps
    steps = [result.steps for result in results if result.steps is not None]
    return replace(
        found,
        by_kind=by_kind.together([found.by_kind, *idling]),
        timeline=_joined([result.timeline for result in results], "time_ps"),
        steps=_joined(steps, "start_ps") if steps else None,
        saturated=_sum(saturated),
        unsaturated=_sum(unsaturated),
        capacity_slots=capacity,
    )


def without(result: Result, absences: Absences, place: int) -> Result:
    """The result without time for which the replica was absent: nothing was held, and nobody waited."""
    sums, away_ps = result.unsaturated, absences.ps(place, result.recorded_ps)
    found = replace(result, unsaturated=replace(sums, time_ps=sums.time_ps - away_ps))
    return _with_room(found, absences, place, result.end_ps)


def _with_room(result: Result, absences: Absences, place: int, end_ps: int) -> Result:
    """The result with the room that its tier had up to a time."""
    if result.tier is None:
        return result
    there_ps = end_ps - absences.ps(place, end_ps)
    return replace(
        result,
        tier=_added(
            TierTotals, [result.tier, TierTotals(room_bytes_ps=result.tier.capacity_bytes * there_ps)]
        ),
    )


def _counted(results: Sequence[Result]) -> Result:
    """The first result, with the counts of all of them."""
    gaps = Histogram()
    for result in results:
        gaps.add(result.token_gaps)
    return replace(
        results[0],
        token_gaps=gaps,
        rejected=_counts([result.rejected for result in results]),
        held_ps=_counts([result.held_ps for result in results]),
        upkeep=_added(UpkeepTotals, [result.upkeep for result in results if result.upkeep is not None]),
        drafts=_drafts([result.drafts for result in results if result.drafts is not None]),
        tier=_added(TierTotals, [result.tier for result in results if result.tier is not None]),
        by_kind=by_kind.together([result.by_kind for result in results]),
        memory_stats=_counts([result.memory_stats or {} for result in results]),
        **{name: sum(getattr(result, name) for result in results) for name in ADDED},
        **{name: max(getattr(result, name) for result in results) for name in LARGEST},
    )


def part(result: Result, place: int) -> Result:
    """The result of one replica as a run of the requests routed to it."""
    if result.replica is None:
        return result
    rows = np.flatnonzero(result.replica == place)
    samples = result.workload.samples
    answers = result.samples
    if samples is not None and answers is not None:
        chosen = gathered(samples.offsets, rows)[1]
        answers = {name: column[chosen] for name, column in answers.items()}
    return replace(
        result,
        workload=requests_of(result.workload, rows),
        arrival_ps=result.arrival_ps[rows],
        output_tokens=result.output_tokens[rows],
        finished=result.finished[rows],
        requests={name: column[rows] for name, column in result.requests.items()},
        samples=answers,
        replica=None,
        drafts=None if result.drafts is None else _drafts_of(result.drafts, rows),
        resent=None,
        stages=None if result.stages is None else {n: c[rows] for n, c in result.stages.items()},
    )


def requests_of(workload: Workload, rows: Int64Column) -> Workload:
    """Some requests of a workload, in the same order; drops waits for requests outside them."""
    content, priority, samples = workload.content, workload.priority, workload.samples
    return replace(
        workload,
        arrival_ps=workload.arrival_ps[rows],
        prompt_tokens=workload.prompt_tokens[rows],
        output_tokens=workload.output_tokens[rows],
        samples=None if samples is None else samples.rows(rows),
        content=None if content is None else [content[row] for row in rows.tolist()],
        priority=None if priority is None else priority[rows],
        drafts=None if workload.drafts is None else workload.drafts[rows],
        held_ps=None if workload.held_ps is None else workload.held_ps[rows],
        waits=None if workload.waits is None else _waits_of(workload.waits, rows),
        labels={name: column[rows] for name, column in workload.labels.items()},
    )


def _waits_of(waits: Chain | Clients, rows: Int64Column) -> Chain | Clients:
    """The waits of some requests for others among them."""
    if isinstance(waits, Clients):
        return Clients(waits.clients, waits.think_ps[rows])
    place = np.full(len(waits.after) + 1, -1, np.int64)  # the last entry is for requests that do not wait
    place[rows] = np.arange(len(rows))
    return Chain(place[waits.after[rows]], waits.think_ps[rows])


def _sum(parts: Sequence[Integrals]) -> Integrals:
    return Integrals(**{name: sum(getattr(each, name) for each in parts) for name in asdict(parts[0])})


def _counts(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Sums over all keys of any of them."""
    names = dict.fromkeys(name for each in parts for name in each)
    return {name: sum(each.get(name, 0) for each in parts) for name in names}


def _added(kind: type[T], parts: Sequence[T]) -> T | None:
    """The sums of the replicas' counts; None if none has any."""
    if not parts:
        return None
    names = [each.name for each in fields(kind)]  # a compiled instance has no vars()
    return kind(**{name: sum(getattr(each, name) for each in parts) for name in names})


def _drafts(parts: Sequence[DraftTotals]) -> DraftTotals | None:
    if not parts:
        return None
    found = DraftTotals()
    for each in parts:
        found.add(each)
    return found


def _drafts_of(totals: DraftTotals, rows: Int64Column) -> DraftTotals:
    """The drafts of some rows of the workload."""
    kept = {place: totals.rows[row] for place, row in enumerate(rows.tolist()) if row in totals.rows}
    return DraftTotals(totals.verified, totals.drafted, totals.accepted, totals.vain, kept)


def _joined(tables: Sequence[dict[str, Int64Column]], time: str) -> dict[str, Int64Column]:
    """The rows of all tables in order of time, and the table of each row."""
    counts = [len(table[time]) for table in tables]
    names = dict.fromkeys(name for table in tables for name in table)
    columns = {
        name: np.concatenate(
            [table.get(name, np.zeros(rows, np.int64)) for table, rows in zip(tables, counts, strict=True)]
        )
        for name in names
    }
    columns["replica"] = np.repeat(np.arange(len(tables)), counts)
    order = np.argsort(columns[time], kind="stable")
    return {name: column[order] for name, column in columns.items()}
