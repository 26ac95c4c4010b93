"""kvsim admits, and preempts by priority, as the genuine SGLang 0.5.23 does: request by request.

The budget is the recordings' (`available`, `evictable` and what runs); which requests are admitted, with
how much of each prompt, and what is left after each, is kvsim's.
"""

import pytest
from support.scheduled import names_in, recording
from support.sglang_rounds import Entered, insert, memory_of, request_of

from kvsim.allocators.dynamic import Dynamic
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.record.events import NO_ROOM
from kvsim.sim.schedulers.sglang import Sglang
from kvsim.sim.schedulers.sglang_budget import MOST_ESTIMATED, Budget, FixedAnswers
from kvsim.sim.serving.request import Request

pytestmark = pytest.mark.golden
FOLDER, PREEMPTIONS = "policies/sglang", "policies/sglang_preempt"
LONGEST = 1 << 20


class Told(Sglang):
    """SGLang's scheduler, whose requests may generate what the recording says; each may ignore its EOS."""

    limits: dict[int, tuple[int, bool]]

    def most_new(self, request):
        return self.limits[request.index][0]

    def _set_aside(self, server, request):
        most, fixed = self.limits[request.index]
        return min(most - request.generated, MOST_ESTIMATED) * (1 if fixed else self.ratio.now)


def scheduler_over(allocator, ratio, **settings):
    config = EngineConfig(
        scheduler="sglang", block_size=allocator.block_slots, max_num_batched_tokens=LONGEST, **settings
    )
    scheduler = Told(config, LONGEST)
    scheduler.ratio.now = ratio
    return scheduler, scheduler.new_server(allocator, lambda request: request.final_tokens)


class Locks:
    """Records what a round locks in the tree, to unlock it afterwards: rounds are independent."""

    def __init__(self, cached):
        self.cached, self.nodes = cached, []
        self.hold, cached.hold = cached.hold, self.holding

    def holding(self, match):
        self.hold(match)
        self.nodes.append(match.node)

    def undo(self):
        self.cached.hold = self.hold
        for node in self.nodes:
            self.cached.tree.unlock(node)


def set_aside(running, ratio):
    """What the adder starts with, as the README says."""
    return sum(min(r["max_new"] - r["out"], 4096) * (1 if r["ignore_eos"] else ratio) for r in running)


def admitted(scheduler, server, case, round_, requests):
    """[id, verdict, admitted, prefix, extend, total, current, input, chunk] of each that is looked at."""
    told, adder = {each["id"]: each for each in case["requests"]}, round_["adder"]
    chunk, most, ratio = adder["chunk"], adder["max_prefill_tokens"], adder["new_token_ratio"]
    running = round_["running"]
    size = case["config"]["page_size"]
    free = adder["available"] + adder["evictable"]
    tokens = most if chunk is None else chunk
    budget = Budget(free, size, set_aside(running, ratio), tokens, chunk is not None, 0)
    states = [(r["max_new"] * (1 if r["ignore_eos"] else ratio) - r["out"], r["occ"]) for r in running]
    chosen, answers = [], None
    for number in round_["order"]:
        request = requests[number]
        if adder["prefill_max_requests"] is not None and len(chosen) >= adder["prefill_max_requests"]:
            yield [number, "OTHER", 0]
            return
        if case["config"]["tree_disabled"] and told[number]["ignore_eos"]:
            if answers is None:
                answers = FixedAnswers(states)
            scheduler._answers = answers
        scheduler._held = ""
        went_on = scheduler._admit(server, budget, request, chosen)
        scheduler._answers = None
        entered = bool(chosen) and chosen[-1][0] is request
        verdict = "CONTINUE" if went_on else "NO_TOKEN" if scheduler._held == NO_ROOM else "OTHER"
        row = [number, verdict, int(entered)]
        if entered:
            _, match, extend = chosen[-1]
            left = most - (tokens - budget.tokens)
            row += [match.tokens if match else 0, extend, budget.left, budget._free - budget._current, left]
            row.append(budget.tokens if chunk is not None else None)
            if not scheduler.cut:
                states.append(
                    (
                        told[number]["max_new"] * (1 if told[number]["ignore_eos"] else ratio)
                        - request.generated,
                        request.known_tokens,
                    )
                )
        yield row
        if not went_on:
            return


@pytest.mark.parametrize("name", names_in(FOLDER))
def test_whom_a_step_admits_is_as_in_sglang(name):
    case = recording(FOLDER, name)
    config = case["config"]
    cached = memory_of(config)
    requests = {each["id"]: request_of(each) for each in case["requests"]}
    for round_ in case["rounds"]:
        insert(cached, round_["insert"])
        adder = round_.get("adder")
        if adder is None:
            continue
        scheduler, server = scheduler_over(
            cached,
            adder["new_token_ratio"],
            enable_prefix_caching=cached.caches,
            enable_chunked_prefill=adder["chunk"] is not None,
        )
        scheduler.limits = {each["id"]: (each["max_new"], each["ignore_eos"]) for each in case["requests"]}
        locks = Locks(cached)
        rows = list(admitted(scheduler, server, case, round_, requests))
        expected = [row if row[2] else row[:3] for row in adder["steps"]]
        assert [row[:5] for row in rows] == [row[:5] for row in expected]
        assert [row[5:] for row in rows] == [pytest.approx(row[5:]) for row in expected]
        locks.undo()
        assert (scheduler.cut.index if scheduler.cut else None) == adder["chunked"]


class Batch:
    """Running requests by id."""

    def __init__(self, running):
        self.running = running

    def requests(self):
        return list(self.running.values())


def running_of(round_, sign):
    """Running requests of a round that are not finished, and when each arrived."""
    found, entries = {}, {}
    for number, priority, entry, most, generated, _, finished in round_["running"]:
        if finished:
            continue
        request = found[number] = Request(number, 1, most)
        request.priority, request.generated = priority * sign, generated
        entries[request] = entry
    return found, entries


@pytest.mark.parametrize("name", names_in(PREEMPTIONS))
def test_who_is_preempted_for_a_more_urgent_request_is_as_in_sglang(name):
    case = recording(PREEMPTIONS, name)
    config = case["config"]
    sign = 1 if config["low_values_first"] else -1
    for round_ in case["rounds"]:
        scheduler, server = scheduler_over(
            Dynamic(LONGEST),
            config["new_token_ratio"],
            policy="priority",
            options={"preemption_threshold": config["threshold"]},
        )
        running, entries = running_of(round_, sign)
        finished = {row[0] for row in round_["running"] if row[6]}
        scheduler.limits = {row[0]: (row[3], bool(row[5])) for row in round_["running"]}
        scheduler._batch, released = Batch(running), []

        def send_back(_, request, running=running, released=released, finished=finished):
            del running[request.index]
            released.append([request.index, len(running) + len(finished)])

        scheduler._send_back = send_back
        held = [
            {"max_new": most, "out": generated, "ignore_eos": fixed}
            for _, _, _, most, generated, fixed, _ in round_["running"]
        ]
        budget = Budget(
            round_["available"], config["page_size"], set_aside(held, scheduler.ratio.now), 1, True, 0
        )
        for number, prompt, most, priority, before, granted, gone, left, after in round_["tries"]:
            request = Request(number, prompt, most)
            request.priority = priority * sign
            scheduler.limits[number] = most, False
            scheduler._waiting = Entered(entries | {request: LONGEST})
            scheduler._looked[request] = prompt
            released.clear()
            assert budget.left == pytest.approx(before)
            assert scheduler._preempt(server, budget, request, []) == bool(granted)
            assert released == gone
            assert sorted([*running, *finished]) == sorted(left)
            assert budget.left == pytest.approx(after)
