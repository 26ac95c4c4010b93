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
from kvsim.sim.schedulers.sglang_adder import PrefillAdder
from kvsim.sim.schedulers.sglang_budget import Budget, FixedAnswers
from kvsim.sim.schedulers.sglang_lengths import MOST_ESTIMATED, AnswerLengths
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.sglang_parts import SglangMemory

pytestmark = pytest.mark.golden
FOLDER, PREEMPTIONS = "policies/sglang", "policies/sglang_preempt"
LONGEST = 1 << 20


class Told(AnswerLengths):
    """Requests may generate what the recording says; each may ignore its EOS."""

    def __init__(self, ratio, limits):
        self.ratio, self.limits = ratio, limits

    def most_new(self, request):
        return self.limits[request.index][0]

    def reserved(self, request, generated):
        most, fixed = self.limits[request.index]
        return min(most - generated, MOST_ESTIMATED) * (1 if fixed else self.ratio)


def server_over(allocator, **settings):
    config = EngineConfig(
        scheduler="sglang", block_size=allocator.block_slots, max_num_batched_tokens=LONGEST, **settings
    )
    return Sglang(config, LONGEST).new_server(allocator, lambda request: request.final_tokens)


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


def admitted(server, case, round_, requests):
    """[id, verdict, admitted, prefix, extend, total, current, input, chunk] of each that is looked at."""
    told, adder = {each["id"]: each for each in case["requests"]}, round_["adder"]
    chunk, most, ratio = adder["chunk"], adder["max_prefill_tokens"], adder["new_token_ratio"]
    running = round_["running"]
    size = case["config"]["page_size"]
    free = adder["available"] + adder["evictable"]
    tokens = most if chunk is None else chunk
    budget = Budget(free, size, set_aside(running, ratio), tokens, chunk is not None, 0)
    states = [(r["max_new"] * (1 if r["ignore_eos"] else ratio) - r["out"], r["occ"]) for r in running]
    lengths = Told(ratio, {number: (each["max_new"], each["ignore_eos"]) for number, each in told.items()})
    adding = PrefillAdder(server, server.batch, server.waiting, lengths, budget, LONGEST)
    answers = None
    for number in round_["order"]:
        request = requests[number]
        if adder["prefill_max_requests"] is not None and len(adding.can_run) >= adder["prefill_max_requests"]:
            yield [number, "OTHER", 0]
            break
        if case["config"]["tree_disabled"] and told[number]["ignore_eos"]:
            if answers is None:
                answers = FixedAnswers(states)
            adding.answers = answers
        why = adding.add_one_req(request)
        adding.answers = None
        entered = bool(adding.can_run) and adding.can_run[-1][0] is request
        verdict = "NO_TOKEN" if why == NO_ROOM else "OTHER" if why else "CONTINUE"
        row = [number, verdict, int(entered)]
        if entered:
            _, match, extend = adding.can_run[-1]
            left = most - (tokens - budget.tokens)
            row += [match.tokens if match else 0, extend, budget.left, budget._free - budget._current, left]
            row.append(budget.tokens if chunk is not None else None)
            if not adding.chunked_req:
                states.append(
                    (
                        told[number]["max_new"] * (1 if told[number]["ignore_eos"] else ratio)
                        - request.generated,
                        request.known_tokens,
                    )
                )
        yield row
        if why:
            break
    cut = adding.chunked_req
    assert (cut.index if cut else None) == adder["chunked"]


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
        server = server_over(
            cached,
            enable_prefix_caching=cached.caches,
            enable_chunked_prefill=adder["chunk"] is not None,
        )
        locks = Locks(cached)
        rows = list(admitted(server, case, round_, requests))
        expected = [row if row[2] else row[:3] for row in adder["steps"]]
        assert [row[:5] for row in rows] == [row[:5] for row in expected]
        assert [row[5:] for row in rows] == [pytest.approx(row[5:]) for row in expected]
        locks.undo()


class Running:
    """Running requests by id, and what is left when one of them is preempted."""

    def __init__(self, running, finished, memory):
        self.running, self.finished, self.memory = running, finished, memory
        self.released = []

    def requests(self):
        return list(self.running.values())

    def generated(self, request):
        return request.generated

    def preempt(self, request, requeue):
        assert not requeue
        del self.running[request.index]
        self.released.append([request.index, len(self.running) + len(self.finished)])


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
        running, entries = running_of(round_, sign)
        finished = {row[0] for row in round_["running"] if row[6]}
        limits = {row[0]: (row[3], bool(row[5])) for row in round_["running"]}
        lengths = Told(config["new_token_ratio"], limits)
        batch = Running(running, finished, SglangMemory(Dynamic(LONGEST)))
        held = [
            {"max_new": most, "out": generated, "ignore_eos": fixed}
            for _, _, _, most, generated, fixed, _ in round_["running"]
        ]
        budget = Budget(round_["available"], config["page_size"], set_aside(held, lengths.ratio), 1, True, 0)
        for number, prompt, most, priority, before, granted, gone, left, after in round_["tries"]:
            request = Request(number, prompt, most)
            request.priority = priority * sign
            limits[number] = most, False
            waiting = Entered(entries | {request: LONGEST})
            waiting.missing[request] = prompt
            batch.released.clear()
            adding = PrefillAdder(batch, batch, waiting, lengths, budget, 1, config["threshold"])
            assert budget.left == pytest.approx(before)
            assert adding.preempt_to_schedule(request) == bool(granted)
            assert batch.released == gone
            assert sorted([*running, *finished]) == sorted(left)
            assert budget.left == pytest.approx(after)
