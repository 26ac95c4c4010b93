"""Tests a scheduler on random workloads; InvariantError names the broken rule.

    check_scheduler(Mine)                          # a subclass of Scheduler
    check_scheduler(Mine, seed=7, workloads=100)

Memory is scarce, so requests must constantly make room. Every workload is served twice, in spans and step by
step, with the memory recounted from scratch at every step. The rules:

1. Every request ends exactly once, finished or rejected, and the run comes to an end.
2. Memory is accounted for and freed: the sequences hold exactly what the allocator has allocated, at every
   step, and nothing at the end.
3. Swaps and copies cost time: everything that the allocator moved was in the work of some step.
4. Late tokens are late: the gaps between the tokens of all requests add up to the time that they took.
5. Decisions depend only on the state: spans and single steps give the same run. If not, the first step in
   which they differ is named.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import zip_longest
from random import Random

import numpy as np
import numpy.typing as npt

from kvsim.allocators.base import Allocator, InvariantError
from kvsim.allocators.paged import Paged
from kvsim.sim.build import build_allocator
from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.errors import KvsimError, NoProgress
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.record.events import Events
from kvsim.sim.record.recorder import Result
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.decision import Decision
from kvsim.sim.serving.engine import Engine
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.reservation import reservation
from kvsim.sim.serving.server import Server
from kvsim.sim.workload import Int64Column, Samples, Workload

WORKLOADS = 40
REQUESTS = 30
LONGEST = 64
MOST_DECISIONS = 20_000
SPANS = (1, 1 << 20)
"""most steps per span: one, or as many as possible"""
Event = tuple[int, str, int]


class CountedCost(CostModel):
    """Makes a step take time for all its work, and counts what is moved."""

    source = "check"

    def __init__(self) -> None:
        self.copied = self.blocks_in = self.blocks_out = 0
        self._asked: StepShape | None = None

    def step_ps(self, shape: StepShape) -> int:
        """An odd number of ps for each part of the work."""
        if shape is not self._asked:  # asked once per span, then only decodes are repeated
            self._asked = shape
            self.copied += shape.copied_tokens
            self.blocks_in += shape.swapped_in_blocks
            self.blocks_out += shape.swapped_out_blocks
        drafts = 3_000_017 * shape.draft_tokens + 500_009 * shape.draft_passes
        moved = 50_021 * shape.copied_tokens + 70_001 * (shape.swapped_in_blocks + shape.swapped_out_blocks)
        work = (
            1_000_003 * shape.prefill_tokens + 2_000_029 * shape.decode_seqs + 30_011 * shape.context_tokens
        )
        return 900_000_001 + moved + work + drafts


class CountedPaged(Paged):
    """Counts swapped blocks at the time of the swap."""

    blocks_in = blocks_out = 0

    def swap_in(self, seqs: Sequence[int]) -> bool:
        """As in `Paged`."""
        blocks = self.slots_held(seqs) // self.block_slots
        done = super().swap_in(seqs)
        self.blocks_in += blocks * done
        return done

    def swap_out(self, seqs: Sequence[int]) -> bool:
        """As in `Paged`."""
        blocks = self.slots_held(seqs) // self.block_slots
        done = super().swap_out(seqs)
        self.blocks_out += blocks * done
        return done


RULES = {
    "every_request_ends": "Every request is finished or rejected, once, and the run comes to an end.",
    "memory_is_given_back": "What sequences hold is what is allocated, always, and nothing at the end.",
    "what_is_moved_costs_time": "Whatever is swapped or copied is in the work of some step.",
    "late_tokens_are_late": "The gaps between tokens add up to the time that requests took.",
    "decisions_depend_on_state_alone": "Spans and single steps give the same run.",
}
"""Name of a rule -> its text."""


def check_scheduler(
    scheduler: type[Scheduler],
    seed: int = 0,
    workloads: int = WORKLOADS,
    version: str = "",
    policy: str = "fcfs",
    **options: object,
) -> None:
    """Test a scheduler on random workloads; raise at the first broken rule.

    Parameters
    ----------
    scheduler : subclass of Scheduler
    seed : int
        Seed of the workloads: the same seed draws the same ones.
    workloads : int
        How many workloads to try.
    version : str
        The release of the scheduler; "": the default.
    policy : str
        The order of its queue; unless it is fcfs, requests have random clients and goals.
    **options
        Settings of the engine, and the scheduler's own; with `speculative_config` it serves drafts.

    Raises
    ------
    InvariantError
        Names the rule and the numbers that contradict it.
    """
    for number in range(workloads):
        rng = Random(f"{seed}-{number}")
        deployment = _scenario(scheduler, version, rng, policy, options)
        work = _workload(scheduler, rng)
        if policy != "fcfs":
            work = replace(work, priority=_priorities(rng), labels=_facts(rng))
        try:
            slow, fast = (_served(scheduler, deployment, work, max_span) for max_span in SPANS)
            differing = _differences(slow, fast)
            if differing:
                first = _first_difference(*(_events(scheduler, deployment, work, span) for span in SPANS))
                raise InvariantError(
                    f"decisions_depend_on_state_alone: {first or 'step by step and in spans'}; "
                    f"there differ: {differing}"
                )
        except InvariantError as error:
            raise InvariantError(f"workload {number} of seed {seed}: {error}") from error


def _scenario(
    scheduler: type[Scheduler], version: str, rng: Random, policy: str, options: Mapping[str, object]
) -> Deployment:
    """A small server: few seats, scarce memory."""
    budget = LONGEST * rng.randint(1, 3)
    usual = {"block_size": rng.choice([1, 4, 16]), "max_num_seqs": rng.randint(2, 12)}
    own = {**scheduler.defaults(version, LONGEST), **usual, "max_num_batched_tokens": budget}
    named = {"scheduler": f"check@{version}", "allocator": f"{__name__}:CountedPaged", "policy": policy}
    fields_of_engine = {field.name for field in fields(EngineConfig)}
    own |= {name: value for name, value in options.items() if name in fields_of_engine}
    own["options"] = {name: value for name, value in options.items() if name not in fields_of_engine}
    engine = EngineConfig(max_model_len=LONGEST, **named, **own)  # type: ignore[arg-type]
    blocks = -(-LONGEST // engine.block_size) * rng.randint(2, 5)
    return Deployment(
        model=model_named("opt-13b"), gpu=gpu_named("h100"), engine=engine, num_gpu_blocks=blocks
    )


def _workload(scheduler: type[Scheduler], rng: Random) -> Workload:
    """Requests that come faster than they can be served; with several answers if the scheduler forks."""
    arrival_ps = np.cumsum([rng.choice([0, 1, 5, 20]) * 10**9 for _ in range(REQUESTS)])
    prompts = np.array([rng.randint(1, LONGEST - 2) for _ in range(REQUESTS)])
    answers = np.array([rng.randint(1, LONGEST - prompt) for prompt in prompts.tolist()])
    samples = None
    if scheduler.forks and rng.random() < 0.5:
        lengths = [[rng.randint(1, longest), longest] for longest in answers.tolist()]
        samples = Samples(np.arange(0, 2 * REQUESTS + 1, 2), np.array(lengths).ravel())
    return Workload("check", arrival_ps, prompts, answers, samples=samples)


def _priorities(rng: Random) -> Int64Column:
    return np.array([rng.randrange(3) for _ in range(REQUESTS)])


def _facts(rng: Random) -> dict[str, npt.NDArray[np.generic]]:
    """The client and the due time of each request."""
    return {
        "client": np.array([rng.choice("abc") for _ in range(REQUESTS)], dtype=object),
        "slo_ttft_s": np.array([rng.choice([0.005, 0.05, 0.5, np.nan]) for _ in range(REQUESTS)]),
        "deadline_s": np.array([rng.choice([0.1, np.nan]) for _ in range(REQUESTS)]),
    }


def _events(scheduler: type[Scheduler], deployment: Deployment, work: Workload, max_span: int) -> list[Event]:
    """The events of the same run: (step, event, request)."""
    events = Events()
    _served(scheduler, deployment, work, max_span, events)
    numbers, texts = events.table()
    what = [texts["event"].texts[code] for code in texts["event"].codes.tolist()]
    return list(zip(numbers["step"].tolist(), what, numbers["request"].tolist(), strict=True))


def _first_difference(slow: Sequence[Event], fast: Sequence[Event]) -> str:
    """The first difference between two lists of events, in words; "" if they are equal."""
    for one, other in zip_longest(slow, fast):
        if one != other:
            step = min(event[0] for event in (one, other) if event is not None)
            return f"in step {step}, step by step {_told(one, step)}, but in spans {_told(other, step)}"
    return ""


def _told(event: Event | None, step: int) -> str:
    if event is None or event[0] != step:
        return "nothing happens"
    return f"request {event[2]}: {event[1]}"


def _served(
    scheduler: type[Scheduler],
    deployment: Deployment,
    work: Workload,
    max_span: int,
    events: Events | None = None,
) -> Result:
    """Serve the workload; raise if it breaks one of the first four rules."""
    chosen = scheduler(deployment.engine, LONGEST)
    allocator = build_allocator(deployment, chosen)
    server = chosen.new_server(allocator, reservation("max", LONGEST))
    cost, log = CountedCost(), RequestLog(work)
    rows = 8  # timeline rows: each ends a span
    replica = Replica(
        server, chosen, cost, log, max_span=max_span, timeline_rows=rows, check=True, events=events
    )
    _limit(replica)
    try:
        result = Engine(work, log, [replica], LONGEST).run()
    except NoProgress as error:
        raise InvariantError(f"every_request_ends: {error}") from error
    except (InvariantError, KvsimError):
        raise
    except Exception as error:
        raise InvariantError(f"{type(error).__name__}: {error}") from error
    for rule in (
        _every_request_ends(result, replica),
        _memory_is_given_back(replica),
        _what_is_moved_costs_time(allocator, cost),
        _late_tokens_are_late(result),
    ):
        if rule:
            raise InvariantError(rule)
    return result


def _limit(replica: Replica) -> None:
    """Stop a run that would never end."""
    decide, left = replica.decide, iter(range(MOST_DECISIONS))

    def limited(server: Server) -> Decision:
        if next(left, None) is None:
            waits = f"{len(server.waiting)} wait and {len(server.running)} run"
            raise InvariantError(f"every_request_ends: {MOST_DECISIONS:,} decisions, and still {waits}")
        return decide(server)

    replica.decide = limited


def _every_request_ends(result: Result, replica: Replica) -> str:
    finished, rejected = int(result.finished.sum()), sum(result.rejected.values())
    server, count = replica.server, len(result.workload)
    if finished + rejected == count and not (server.waiting or server.running or server.swapped):
        return ""
    there = f"{len(server.waiting)} wait, {len(server.running)} run, {server.swapped} are swapped"
    return f"every_request_ends: {finished} finished and {rejected} rejected of {count}; {there}"


def _memory_is_given_back(replica: Replica) -> str:
    server, allocator = replica.server, replica.server.allocator
    assert isinstance(allocator, CountedPaged)
    left = {
        "allocated": allocator.used_slots,
        "in the host pool": allocator.host_used_slots,
        "held by prompts": server.prefill_held,
        "never to be written": server.memory.internal,
    }
    kept = ", ".join(f"{slots} slots {where}" for where, slots in left.items() if slots)
    return f"memory_is_given_back: at the end there are {kept}" if kept else ""


def _what_is_moved_costs_time(allocator: Allocator, cost: CountedCost) -> str:
    assert isinstance(allocator, CountedPaged)
    pairs = {
        "swapped out": (allocator.blocks_out, cost.blocks_out),
        "swapped in": (allocator.blocks_in, cost.blocks_in),
        "copied": (allocator.copied_slots, cost.copied),
    }
    wrong = [f"{done} {what}, {paid} paid for" for what, (done, paid) in pairs.items() if done != paid]
    return f"what_is_moved_costs_time: {'; '.join(wrong)}" if wrong else ""


def _late_tokens_are_late(result: Result) -> str:
    if result.samples is not None:  # each answer has its own first token, which no column has
        return ""
    done = result.finished
    took = int((result.requests["finish_ps"] - result.requests["first_token_ps"])[done].sum())
    if result.token_gaps.total == took or not done.all():  # dropped requests also produced tokens
        return ""
    return f"late_tokens_are_late: gaps add up to {result.token_gaps.total} ps, requests took {took} ps"


def _differences(one: Result, other: Result) -> str:
    """The names of the fields that differ between two runs."""
    return ", ".join(name for name, value, twin in _pairs(one, other) if value != twin)


def _pairs(one: Result, other: Result) -> Iterator[tuple[str, object, object]]:
    for field in fields(one):
        if field.name in ("workload", "steps", "token_gaps"):
            continue
        yield field.name, _plain(getattr(one, field.name)), _plain(getattr(other, field.name))
    yield "token_gaps", one.token_gaps.bins(), other.token_gaps.bins()


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {name: _plain(column) for name, column in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value
