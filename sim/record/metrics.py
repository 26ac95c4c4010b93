"""Turns a Result into the numbers of the summary and the columns of a run's tables.

TTFT: arrival to first token. TPOT: (E2E - TTFT) / (output - 1), 0 for one token. ITL: every gap between
two tokens of a request. E2E: arrival to last token. Normalized latency: E2E / output tokens. Queueing
delay: arrival to first scheduling. Memory shares are time-weighted percentages of the capacity.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from kvsim.sim.record.events import NONE, Events, Texts
from kvsim.sim.record.load import load
from kvsim.sim.record.memory_map import MemoryMap
from kvsim.sim.record.recorder import Result
from kvsim.sim.record.service import service
from kvsim.sim.record.span import Integrals
from kvsim.sim.serving.totals import DraftTotals, TierTotals, UpkeepTotals
from kvsim.sim.workload import PS_PER_S, Int64Column

Float64Column = npt.NDArray[np.float64]
Column = npt.NDArray[np.generic]
Table = dict[str, Column | Texts]
Numbers = dict[str, float | None]

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def _seconds(column_ps: Int64Column) -> Float64Column:
    return column_ps / PS_PER_S


def request_table(result: Result, frontend_s: float | Float64Column = 0.0) -> dict[str, Column]:
    """One row per request in trace order; times and steps are NaN if it was rejected.

    The time outside the engine, `frontend_s`, is part of TTFT and E2E.
    """
    workload, done = result.workload, result.finished
    output = result.output_tokens
    times = {
        name: np.where(done, _seconds(result.requests[f"{name[:-2]}_ps"]), np.nan)
        for name in ("first_scheduled_s", "first_token_s", "finish_s")
    }
    arrival_s = _seconds(result.arrival_ps)
    e2e_s = times["finish_s"] - arrival_s + frontend_s
    ttft_s = times["first_token_s"] - arrival_s + frontend_s
    status = np.where(done, "finished", "rejected").astype("U9")  # "truncated" is longer
    status[done & (output < workload.output_tokens)] = "truncated"
    answers = answered_tokens(result)
    return {
        "request": np.arange(len(workload)),
        "arrival_s": arrival_s,
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": answers,
        "status": status,
        **times,
        "queueing_s": times["first_scheduled_s"] - arrival_s,
        "ttft_s": ttft_s,
        "tpot_s": (e2e_s - ttft_s) / np.maximum(output - 1, 1),
        "e2e_s": e2e_s,
        "normalized_s_per_token": e2e_s / output,
        "num_preemptions": result.requests["num_preemptions"],
        **{
            name: np.where(done, result.requests[name], np.nan)
            for name in ("first_scheduled_step", "first_token_step", "finish_step")
        },
        **{
            f"{name[:-2]}s": np.where(done & (column > 0), _seconds(column), np.nan)
            for name, column in (result.stages or {}).items()
        },
        **({} if result.drafts is None else _draft_columns(result.drafts, len(workload))),
        **workload.labels,
        **({} if result.replica is None else {"replica": result.replica}),
        **({} if result.resent is None else {"resent": result.resent}),
    }


def _draft_columns(totals: DraftTotals, rows: int) -> dict[str, Column]:
    """Drafts per request: verified and accepted ones, and the mean number of tokens per verification."""
    counts = np.array([totals.rows.get(row, (0, 0, 0)) for row in range(rows)], dtype=np.int64).reshape(-1, 3)
    times, drafted, accepted = counts.T
    with np.errstate(invalid="ignore"):
        length = 1 + np.divide(accepted, times, where=times > 0, out=np.full(rows, np.nan))
    return {"draft_tokens": drafted, "accepted_tokens": accepted, "acceptance_length": length}


def answered_tokens(result: Result) -> Int64Column:
    """Tokens generated per request, over all its samples."""
    samples = result.workload.samples
    if samples is None:
        return result.output_tokens
    room = np.repeat(result.output_tokens, np.diff(samples.offsets))  # those of the longest sample, truncated
    return np.add.reduceat(np.minimum(samples.tokens, room), samples.offsets[:-1])


def sample_table(result: Result) -> dict[str, Column] | None:
    """One row per answer, if requests have several; times and steps are NaN if it never finished."""
    samples = result.workload.samples
    if samples is None or result.samples is None:
        return None
    counts = np.diff(samples.offsets)
    done = result.samples["finish_ps"] > 0
    return {
        "request": np.repeat(np.arange(len(counts)), counts),
        "sample": np.arange(len(done)) - np.repeat(samples.offsets[:-1], counts),
        "output_tokens": np.minimum(samples.tokens, np.repeat(result.output_tokens, counts)),
        "finish_s": np.where(done, _seconds(result.samples["finish_ps"]), np.nan),
        "finish_step": np.where(done, result.samples["finish_step"], np.nan),
    }


def timeline_table(result: Result) -> dict[str, Column]:
    """The timeline, with times in seconds."""
    return _with_seconds(result.timeline)


def step_table(result: Result) -> dict[str, Column] | None:
    """The step log, with times in seconds; None if not requested."""
    return None if result.steps is None else _with_seconds(result.steps)


def event_table(events: Events | None) -> Table | None:
    """One row per event; numbers that do not apply are NaN. None if not requested."""
    if events is None:
        return None
    numbers, texts = events.table()
    known = {
        name: np.where(numbers[name] == NONE, np.nan, numbers[name])
        for name in ("tokens", "cached", "by", "need", "free", "largest")
    }
    known_always = [name for name in ("step", "request", "sample", "resent") if name in numbers]
    return {
        "time_s": _seconds(numbers["time_ps"]),
        **{name: numbers[name] for name in known_always},
        "event": texts["event"],
        **known,
        "reason": texts["reason"],
    }


def map_table(memory_map: MemoryMap | None) -> Table | None:
    """One row per range of slots that changed hands; None if no map was requested."""
    if memory_map is None:
        return None
    numbers, texts = memory_map.table()
    return {
        "time_s": _seconds(numbers["time_ps"]),
        "start": numbers["start"],
        "size": numbers["size"],
        "owners": texts["owners"],
        "filled": numbers["filled"],
        "cached": numbers["cached"],
        **{name: numbers[name] for name in ("idle", "held") if name in numbers},
        **({"layers": texts["layers"]} if "layers" in texts else {}),
    }


def together(tables: Sequence[Table | None]) -> Table | None:
    """Combine the tables of a fleet's replicas, in order of time, with the replica of each row.

    A single table stays unchanged. None if not requested.
    """
    known = [table for table in tables if table is not None]
    if len(known) < 2:
        return known[0] if known else None
    counts = [len(np.asarray(table["time_s"])) for table in known]
    order = np.argsort(np.concatenate([np.asarray(table["time_s"]) for table in known]), kind="stable")
    return _joined(known, order) | {"replica": np.repeat(np.arange(len(known)), counts)[order]}


def in_turn(tables: Sequence[Table | None]) -> Table | None:
    """The tables of the lives of one replica, one after the other; None if not requested."""
    known = [table for table in tables if table is not None]
    if len(known) < 2:
        return known[0] if known else None
    return _joined(known, np.arange(sum(len(np.asarray(table["time_s"])) for table in known)))


def maps_in_turn(tables: Sequence[Table | None]) -> Table | None:
    """The same for memory maps: the last map of a life is followed by the first of the next."""
    known = [table for table in tables if table is not None]
    for place, following in enumerate(known[1:]):
        begins_s = np.asarray(following["time_s"])[0]
        rows = np.flatnonzero(np.asarray(known[place]["time_s"]) < begins_s).astype(np.int64)
        known[place] = {
            name: column.in_order(rows) if isinstance(column, Texts) else np.asarray(column)[rows]
            for name, column in known[place].items()
        }
    return in_turn(known)


def _joined(tables: Sequence[Table], order: Int64Column) -> dict[str, Column | Texts]:
    """The rows of several tables, in this order; 0, or an empty text, for columns that a table lacks."""

    def joined(name: str) -> Column | Texts:
        none = [np.zeros(len(np.asarray(table["time_s"])), np.int64) for table in tables]
        columns = [table.get(name, each) for table, each in zip(tables, none, strict=True)]
        if any(isinstance(column, Texts) for column in columns):
            texts = [each if isinstance(each, Texts) else Texts(np.asarray(each), [""]) for each in columns]
            return Texts.joined(texts).in_order(order)
        found: Column = np.concatenate([np.asarray(column) for column in columns])[order]
        return found

    return {name: joined(name) for name in dict.fromkeys(name for table in tables for name in table)}


def _with_seconds(columns: Mapping[str, Int64Column]) -> dict[str, Column]:
    return {
        name.removesuffix("_ps") + ("_s" if name.endswith("_ps") else ""): (
            _seconds(column) if name.endswith("_ps") else column
        )
        for name, column in columns.items()
    }


def summary(result: Result, table: Mapping[str, Column]) -> dict[str, object]:
    """The numbers of a run, ready for JSON; `table` is its `request_table`.

    Latencies are over finished requests; None if there are none.
    """
    done = result.finished
    duration_s = result.end_ps / PS_PER_S
    finished = int(done.sum())
    whole, known = _added(result.saturated, result.unsaturated), result.timeline.keys()
    return {
        "duration_s": duration_s,
        "requests": {
            "submitted": len(done),
            "finished": finished,
            "rejected": len(done) - finished,
            "rejected_reasons": result.rejected,
            "truncated": result.truncated,
        },
        "throughput": throughput(result),
        "latency": {
            **latencies(table, done),
            "itl_s": _gap_spread(result),
        },
        "load": load(result),
        "memory": {
            "capacity_tokens": result.capacity_slots // result.slots_per_token,
            "average": _shares(whole, result.capacity_slots, known),
            "saturated": _shares(result.saturated, result.capacity_slots, known),
            "saturated_share": _ratio(result.saturated.time_ps, whole.time_ps),
            "saved_by_sharing": _percent(whole.shared, whole.time_ps * result.capacity_slots + whole.beyond),
            "peak_used_tokens": result.peak_used_tokens,
            "external_fragmentation_refusals": result.fragmented_refusals,
            **({} if result.by_kind is None else {"groups": _by_kind(result, whole)}),
        },
        "engine": {
            "steps": result.step_count,
            "mean_running": _ratio(whole.running, whole.time_ps),
            "mean_running_saturated": _ratio(result.saturated.running, result.saturated.time_ps),
            "max_running": result.max_running,
            "preemptions_recompute": result.preemptions,
            "preemptions_swap": result.swap_outs,
            "swapped_in_blocks": result.swapped_in_blocks,
            "swapped_out_blocks": result.swapped_out_blocks,
            "cow_copies": result.cow_copies,
            "copied_tokens": -(-result.copied_slots // result.slots_per_token),
            "prefix_hit_tokens": result.hit_tokens,
        },
        **({} if result.drafts is None else {"speculation": _speculation(result.drafts)}),
        **({} if result.upkeep is None else {"upkeep": _upkeep(result.upkeep)}),
        **({} if result.tier is None else {"tier": _tier(result.tier, result)}),
        **({"memory_stats": result.memory_stats} if result.memory_stats else {}),
        **({} if (told := service(table, result.thrown_tokens)) is None else {"service": told}),
    }


def latencies(table: Mapping[str, Column], chosen: npt.NDArray[np.bool_]) -> dict[str, Numbers]:
    """Mean, quantiles and maximum of each latency over the chosen requests, which are finished."""
    return {name: _spread(np.asarray(table[name], dtype=np.float64)[chosen]) for name in LATENCIES}


def throughput(result: Result) -> Numbers:
    """Requests and tokens per second of simulated time, over finished requests."""
    done, duration_s = result.finished, result.end_ps / PS_PER_S
    output = int(answered_tokens(result)[done].sum())
    prompt = int(result.workload.prompt_tokens[done].sum())
    return {
        "requests_per_s": _ratio(int(done.sum()), duration_s),
        "output_tokens_per_s": _ratio(output, duration_s),
        "total_tokens_per_s": _ratio(prompt + output, duration_s),
    }


LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "normalized_s_per_token", "queueing_s")


def _added(a: Integrals, b: Integrals) -> Integrals:
    return Integrals(**{name: value + getattr(b, name) for name, value in asdict(a).items()})


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None


def _tier(totals: TierTotals, result: Result) -> dict[str, float | None]:
    """The tier below the memory; for a fleet, all tiers combined."""
    prompts = int(result.workload.prompt_tokens[result.finished].sum())
    waited = totals.waited_requests
    return {
        "capacity_bytes": totals.capacity_bytes,
        "average_used_share": _ratio(
            totals.held_bytes_ps, totals.room_bytes_ps or result.end_ps * totals.capacity_bytes
        ),
        "peak_used_bytes": totals.peak_bytes,
        "hit_tokens": totals.hit_tokens,
        "hit_share": _ratio(totals.hit_tokens, prompts),
        "saved_prefill_s": totals.saved_ps / PS_PER_S,
        "loaded_bytes": totals.loaded_bytes,
        "stored_bytes": totals.stored_bytes,
        "load_busy_share": _ratio(totals.load_busy_ps, result.recorded_ps),
        "store_busy_share": _ratio(totals.store_busy_ps, result.recorded_ps),
        "requests_waited": waited,
        "mean_wait_s": _ratio(totals.waited_ps / PS_PER_S, waited),
        "steps_waited_s": totals.steps_waited_ps / PS_PER_S,
        "refused_stores": totals.refused_stores,
        "evicted_bytes": totals.evicted_bytes,
        **(
            {name: getattr(totals, name) for name in ("promoted_tokens", "promoted_bytes", "cascaded_bytes")}
            if totals.cascaded_bytes
            else {}
        ),
    }


def _speculation(totals: DraftTotals) -> dict[str, float | None]:
    """The fate of drafts: `wasted` tokens were computed and discarded."""
    length = _ratio(totals.accepted, totals.verified)
    return {
        "verifications": totals.verified,
        "draft_tokens": totals.drafted,
        "accepted_tokens": totals.accepted,
        "wasted_tokens": totals.drafted - totals.accepted + totals.vain,
        "acceptance_rate": _ratio(totals.accepted, totals.drafted),
        "acceptance_length": None if length is None else 1 + length,
    }


def _upkeep(totals: UpkeepTotals) -> dict[str, float]:
    """Other work of the allocator."""
    return {
        "maps": totals.maps,
        "unmaps": totals.unmaps,
        "steps_waited_s": totals.waited_ps / PS_PER_S,
        "beside_steps_s": totals.hidden_ps / PS_PER_S,
        "beyond_steps_s": totals.exceeded_ps / PS_PER_S,
    }


def kinds(sums: Integrals, capacity: int, known: Container[str] = ()) -> dict[str, int]:
    """The integrals of the ledger's kinds; they sum to capacity x time.

    `held` and `idle` are included if they are in `known`, i.e. may occur; `beyond` if memories differ in
    size.
    """
    return {
        "token": sums.token - sums.held,
        **({"held": sums.held} if "held" in known else {}),
        "reserved": sums.used - sums.internal - sums.token,
        "internal": sums.internal,
        "cached": sums.cached,
        "external": sums.external,
        **({"idle": sums.idle} if "idle" in known else {}),
        "free": capacity * sums.time_ps + sums.beyond - sums.used - sums.cached - sums.external - sums.idle,
    }


def _by_kind(result: Result, whole: Integrals) -> dict[str, object]:
    """The same shares of the whole capacity, by kind of layers; `in_words` describes the kinds."""
    held = result.by_kind
    assert held is not None
    average = _shares_by_kind(held.ledger(held.whole(), whole), result, whole)
    saturated = _shares_by_kind(held.ledger(held.saturated, result.saturated), result, result.saturated)
    return {
        name: {
            "in_words": held.in_words.get(name, name),
            "average": average[name],
            "saturated": saturated[name],
        }
        for name in average
    }


def _shares_by_kind(
    ledgers: Mapping[str, Mapping[str, int]], result: Result, sums: Integrals
) -> dict[str, Numbers | None]:
    """Percent of capacity x time; None if no time passed."""
    whole, idles = result.capacity_slots * sums.time_ps + sums.beyond, "idle" in result.timeline
    return {
        name: {kind: _percent(slots, whole) for kind, slots in ledger.items() if kind != "idle" or idles}
        if sums.time_ps
        else None
        for name, ledger in ledgers.items()
    }


def _shares(sums: Integrals, capacity: int, known: Container[str]) -> Numbers | None:
    """Percent of capacity x time by ledger kind; None if no time passed."""
    if not sums.time_ps:
        return None
    whole = capacity * sums.time_ps + sums.beyond
    return {kind: _percent(slots, whole) for kind, slots in kinds(sums, capacity, known).items()}


def _spread(values: Float64Column) -> Numbers:
    if not len(values):
        return dict.fromkeys(("mean", *QUANTILES, "max"))
    quantiles = np.quantile(values, list(QUANTILES.values()))
    return {
        "mean": float(values.mean()),
        **dict(zip(QUANTILES, map(float, quantiles), strict=True)),
        "max": float(values.max()),
    }


def _gap_spread(result: Result) -> Numbers:
    gaps = result.token_gaps
    values = [gaps.mean(), *gaps.quantiles(list(QUANTILES.values())), gaps.maximum if gaps.count else None]
    names = ("mean", *QUANTILES, "max")
    return {
        name: None if value is None else value / PS_PER_S for name, value in zip(names, values, strict=True)
    }
