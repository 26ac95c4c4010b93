"""Recordings of vLLM's scheduler with drafts (`../shared/goldens/spec/README.md`), and kvsim's records.

The drafts proposed and accepted are given to kvsim event by event. A step takes one second.
Every text is given whole, prompt and answer, so that the hashes can be counted.
"""

import json

import numpy as np

from kvsim.allocators.options import Order
from kvsim.allocators.paged import Paged
from kvsim.sim.content import VOCABULARY, ascending
from kvsim.sim.cost.constant import Constant
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.schedulers.vllm_v1 import VllmV1
from kvsim.sim.serving.engine import Engine
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.reservation import reservation
from kvsim.sim.workload import PS_PER_S, Workload
from support.scheduled import FIRST_BLOCK, Noted
from support.settings import engine_config

METHODS = {"mtp_multi": "mtp"}
IDS_OF_A_REQUEST, FIRST_ANSWER = 4096, 10_000_000


def by_arrival(case):
    """The requests in order of arrival."""
    return sorted(case["workload"], key=lambda request: (request["arrival"], request["id"]))


def whole_text(request):
    """The tokens of a request's prompt and answer, as runs of ids."""
    start = request["id"] * IDS_OF_A_REQUEST
    prompt = request.get("prompt_ids") or range(start, start + request["prompt_len"])
    answer = range(FIRST_ANSWER + start, FIRST_ANSWER + start + request["output_len"])
    return tuple((VOCABULARY, *run) for run in ascending([*prompt, *answer]))


def speculation(config):
    """The user's `--speculative-config`; None for a recording without drafts."""
    if not config["num_speculative_tokens"]:
        return None
    said = {
        "method": METHODS.get(config["method"], config["method"]),
        "num_speculative_tokens": config["num_speculative_tokens"],
        "synthetic_acceptance_length": 1,
    }
    if config["method"] == "draft_model":
        said["model"] = "tiny"
    if config["method"] == "mtp_multi":
        said["num_nextn_predict_layers"] = 3
    if config["enable_prefix_caching"] and config["use_eagle_block_drop"]:
        said["disable_lookahead_block_hashes"] = True
    drafting = config["method"] in ("eagle", "mtp", "mtp_multi") and config["enable_prefix_caching"]
    if drafting and not (config["num_hash_lookahead_tokens"] or config["use_eagle_block_drop"]):
        said["disable_eagle_block_drop"] = True
    if config["dynamic_sd_lookup"]:
        ranges = enumerate(config["dynamic_sd_lookup"][1:], 1)
        said["num_speculative_tokens_per_batch_size"] = [[size, size, drafts] for size, drafts in ranges]
    return json.dumps(said)


def events(case):
    """The recorded draft events of each request."""
    if not case["acceptance"]:
        return None
    found = np.empty(len(case["workload"]), dtype=object)
    for row, request in enumerate(by_arrival(case)):
        recorded = case["acceptance"][str(request["id"])]
        found[row] = tuple(zip(recorded["drafts"], recorded["accept"], strict=True))
    return found


def engine_for(case):
    """(engine, scheduler) ready to serve the requests of a recording."""
    config, requests = case["config"], by_arrival(case)
    caches = config["enable_prefix_caching"]
    engine = engine_config(
        scheduler="vllm-v1@0.33.0",
        block_size=config["block_size"],
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        enable_prefix_caching=caches,
        async_scheduling=config["async_scheduling"],
        options={
            "watermark": config["watermark"],
            "reserve_full_prompt": config["scheduler_reserve_full_isl"],
            "speculative_config": speculation(config),
        },
    )
    longest = config["max_model_len"]
    scheduler = VllmV1(engine, longest)
    slots = config["usable_blocks"] * config["block_size"]
    order = Order.HASHED_LAST if caches else Order.STACK
    allocator = Paged(slots, config["block_size"], order, cache=scheduler.cache)
    work = Workload(
        "recording",
        np.array([request["arrival"] for request in requests], dtype=np.int64) * PS_PER_S,
        np.array([request["prompt_len"] for request in requests], dtype=np.int64),
        np.array([request["output_len"] for request in requests], dtype=np.int64),
        content=[whole_text(request) for request in requests] if caches else None,
        drafts=events(case),
    )
    scheduler.follow(work)
    log, server = RequestLog(work), scheduler.new_server(allocator, reservation("max", longest))
    replica = Replica(server, scheduler, Constant(1), log, check=True)
    return Engine(work, log, [replica], [longest]), scheduler


def records(case):
    """step -> record of kvsim's engine."""
    engine, scheduler = engine_for(case)
    return (NotedDrafts(engine, case, scheduler) if scheduler.speculation else Noted(engine, case)).run()


class NotedDrafts(Noted):
    """An engine whose decisions about drafts are recorded."""

    def __init__(self, engine, case, scheduler):
        super().__init__(engine, case)
        self.drafts = scheduler.steps
        self.asynchronous, self.caches = scheduler.asynchronous, scheduler.cache is not None
        self.hear, self.drafts._hear = self.drafts._hear, self.hearing
        self.drop, self.drafts._leave = self.drafts._leave, self.leaving
        self.may_skip = case["config"]["can_skip_drafts"]

    def hearing(self, taken):
        """The decision is made: look at it before the engine hears the outcome of a step."""
        if self.asynchronous:
            self.look()
        living = [each for each in taken if each.request in self.drafts.seen and each.returned]
        running = self.server.running
        self.out = [
            [self.ids[each.request.index], each.drafts, each.accepted, each.kept]
            + [1] * (each.seq not in running)
            for each in living
        ]
        self.hear(taken)
        told = self.drafts.seen
        self.fin = [self.ids[each.request.index] for each in living if each.request not in told]

    def leaving(self):
        self.drop()
        self.end()

    def look(self):
        if self.held is not None:
            return
        super().look()
        self.held["free_queue"] = [block + FIRST_BLOCK for block in self.server.allocator.free_queue()]

    def end(self):
        """The state when the outcome of the step, or of the previous one, is known."""
        server, ids, late = self.server, self.ids, self.asynchronous
        allocator = server.allocator
        state = []
        for request, seen in self.drafts.seen.items():
            if seen.computed or seen.in_flight:
                row = [ids[request.index], seen.tokens, seen.computed]
                state.append(row + [seen.placeholders, seen.in_flight, seen.drafts] * late)
        self.ended = {
            "out": self.out,
            "fin": self.fin,
            "state": sorted(state),
            "free_end": allocator.free_slots // allocator.block_slots,
            "free_queue_end": [block + FIRST_BLOCK for block in allocator.free_queue()],
        }
        if allocator.prefixes is not None:
            self.ended["hash_end"] = len(set(allocator.prefixes.known_blocks().values()))
        if not late:
            self.ended["drafts"] = [
                [ids[each.request.index], each.seen.drafts]
                for each in self.drafts.taken
                if not each.in_prompt and each.request in self.drafts.seen
            ]
            self.record |= self.ended

    def noting(self, server):
        self.preempted, self.admitted, self.held = [], {}, None
        self.out, self.fin, self.ended = [], [], {}
        step = self.decide(server)
        if self.held is None:
            self.look()
        drafts, ids = self.drafts, self.ids
        scheduled, admissions, padded = [], [], []
        for each in drafts.taken:
            name = ids[each.request.index]
            row = [name, each.tokens, each.start, each.drafts]
            if name in self.admitted:
                admissions.append([*row, 1 + (name in self.seen)])
                if each.padded:
                    padded.append(name)
            else:
                scheduled.append([*row, 0])
        self.seen |= set(self.admitted)
        self.record = {
            "sched": scheduled + admissions,
            "adm": [list(each) for each in self.admitted.items()],
            "pad": padded,
            "pre": self.preempted,
            "wait": self.waiting(),
            "k_now": drafts.proposed,
            "skip_drafts": int(self.may_skip and drafts.skips_drafts),
            **self.held,
            **self.ended,
        }
        self.steps[server.now_ps // PS_PER_S] = self.record
        return step


TINY_ONLY = {"free_queue", "free_queue_end"}


def differences(case, found):
    """(step, fact, kvsim's, the recording's) of each difference; idle steps are left out."""
    for told in case["steps"]:
        at = told["step"]
        if at not in found:
            if told.get("sched") or told.get("fin"):
                yield at, "step", None, told["sched"]
            continue
        for fact, noted in found[at].items():
            if fact in TINY_ONLY and fact not in told:
                continue
            if fact == "k_now" and fact not in told:
                continue
            if fact == "hash_end" and not case["config"]["enable_prefix_caching"]:
                continue
            got, expected = noted, told.get(fact, 0 if fact == "skip_drafts" else [])
            if fact == "sched" and not case["config"]["num_speculative_tokens"]:
                expected = [[*entry[:3], entry[-1]] for entry in expected]
            if fact in ("new_blocks", "blocks", "state", "drafts"):
                expected, got = sorted(expected), sorted(got)
            if got != expected:
                yield at, fact, got, expected
