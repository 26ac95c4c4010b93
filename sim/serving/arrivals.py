"""Arrivals: requests at times of their own, and requests that wait for an earlier answer.

    open      each request at its time in the workload
    Chain     a request some time after the answer to another: the next turn of a chat
    Clients   a closed loop: each client sends its next request some time after its last answer

Requests are read one by one from the columns of the workload, and become objects when they arrive.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, Protocol

import simpy

from kvsim.sim.record.recorder import Recorder
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.alarm import Process
from kvsim.sim.serving.decision import NEVER_PS
from kvsim.sim.serving.facts import Facts, facts_of
from kvsim.sim.serving.faults import NEVER_ALIVE
from kvsim.sim.serving.request import Group, Request
from kvsim.sim.serving.server import Server
from kvsim.sim.workload import Chain, Clients

ROWS_AT_ONCE = 8192
"""Requests are taken from the columns in chunks, so that a long trace is never a list of objects."""
NOT_NOW: Final = -1
NOWHERE: Final = -2
"""Not doors: the request cannot be sent on before one opens, or ever."""

Row = tuple[int, int, int, int]
"""(index, arrival_ps, prompt_tokens, output_tokens) of a request."""
NOBODY: Row = (0, NEVER_PS, 0, 0)


class Door(Protocol):
    """What arrivals need from a replica."""

    server: Server
    scheduler: Scheduler
    recorder: Recorder

    def join(self, requests: Iterable[Request]) -> None:
        """Requests have come."""

    def comes_late(self, row: int) -> None:
        """A request is sent here that has come before."""

    def arrived(self) -> None:
        """A request was turned away."""

    def turn_away(self, row: int, now_ps: int, reason: str) -> None:
        """A request that has come now can never be served."""


class Promise:
    """A time before which no request comes; by default none ever comes."""

    def __init__(self, next_ps: int = NEVER_PS) -> None:
        self.next_ps = next_ps


class Arrivals(Promise):
    """Puts the requests of a workload into queues, each at its time; counts those that cannot be served.

    Parameters
    ----------
    longest : sequence of int
        Tokens of the longest sequence of each door; longer answers are cut, prompts that leave no room are
        refused.

    Attributes
    ----------
    next_ps : int
        No request comes before, as far as is known; requests that follow answers may come earlier.
    now_ps : int
        When the last request came.
    wait_for_answers : bool
        Whether any request waits for an answer, so that `answered` matters.
    """

    def __init__(self, env: simpy.Environment, log: RequestLog, longest: Sequence[int]) -> None:
        super().__init__()
        self.env = env
        self.log = log
        self.workload = log.workload
        self.longest = longest
        self.now_ps = 0
        self.wait_for_answers = log.workload.waits is not None
        self._facts: Sequence[Facts] | None = None  # of each row, if a policy reads them
        self._plain = False  # can requests be queued directly, with nothing to check?
        self._rows: Iterator[Row] = iter(())
        self._next_row: Row = NOBODY
        self._doors: Sequence[Door] = ()
        self._choose: Callable[[Request], int] | None = None
        self._asked = 0  # requests that the clients of a closed loop have taken
        self._followers: dict[int, list[int]] = {}  # row -> the rows that wait for its answer
        self._coming: list[int] = []  # arrival times of rows not taken from the columns in order
        self._held: list[int] = []  # rows that wait for any door to open

    def begin(self, doors: Sequence[Door], choose: Callable[[Request], int] | None = None) -> None:
        """Schedule the first arrivals with SimPy; with several doors, `choose` picks one per request."""
        self._doors, self._choose = doors, choose
        if any(each.scheduler.reads_facts for each in doors):
            self._facts = facts_of(self.workload.labels)
        waits, workload, longest, door = self.workload.waits, self.workload, self.longest[0], doors[0]
        if waits is None:
            self._rows = self._in_order()
            self._next_row = next(self._rows, NOBODY)
            self.next_ps = self._next_row[1]
            plain = workload.samples is None and workload.priority is None and not door.scheduler.forks
            plain = plain and door.scheduler.longest_answer(door.server, 1, longest) == longest - 1
            plain = plain and type(door.scheduler).refusal is Scheduler.refusal
            self._plain = choose is None and plain and door.server.allocator.fits(longest, longest)
            if choose is not None:
                self.env.process(self._announce())
        elif isinstance(waits, Clients):
            for _ in range(min(waits.clients, len(workload))):
                self._ask_next(0, 0)
        else:
            for row, (leader, arrival_ps) in enumerate(
                zip(waits.after.tolist(), workload.arrival_ps.tolist(), strict=True)
            ):
                if leader < 0:
                    self._arrive_at(row, arrival_ps)
                else:
                    self._followers.setdefault(leader, []).append(row)

    def end(self) -> None:
        """No more requests come: drop the replicas, which refer to these arrivals."""
        self._doors, self._choose = (), None

    def again(self, row: int) -> None:
        """Bring a request once more: the replica it was sent to is gone."""
        workload = self.workload
        self.now_ps = int(self.env.now)
        self._accept(row, int(workload.prompt_tokens[row]), int(workload.output_tokens[row]), late=True)

    def turn_away(self, row: int) -> None:
        """A request that came can never be served, because no replica is alive."""
        self.now_ps = int(self.env.now)
        self._refuse(self._doors[self.log.place_of(row)], row, NEVER_ALIVE)

    def opened(self) -> None:
        """A door is open: requests that waited for any door come now."""
        rows, self._held = self._held, []
        for row in rows:
            self.again(row)

    @property
    def held(self) -> int:
        """Requests that wait for any door to open."""
        return len(self._held)

    def answered(self, row: int, now_ps: int) -> None:
        """A request has all its answers, or never will: schedule the requests that waited for it."""
        waits = self.workload.waits
        if isinstance(waits, Clients):
            if self._asked < len(self.workload):
                self._ask_next(now_ps, int(waits.think_ps[self._asked]))
        elif isinstance(waits, Chain):
            for follower in self._followers.pop(row, ()):
                self._arrive_at(follower, now_ps + int(waits.think_ps[follower]))

    def _ask_next(self, now_ps: int, think_ps: int) -> None:
        self._arrive_at(self._asked, now_ps + think_ps)
        self._asked += 1

    def _arrive_at(self, row: int, when_ps: int) -> None:
        """Let a row arrive later; the time it is counted from may be ahead of SimPy's."""
        heappush(self._coming, when_ps)
        self.next_ps = self._coming[0]
        event = self.env.timeout(when_ps - int(self.env.now))
        event.callbacks.append(lambda _: self._arrive_late(row))

    def _arrive_late(self, row: int) -> None:
        heappop(self._coming)
        self.next_ps = self._coming[0] if self._coming else NEVER_PS
        workload = self.workload
        steps = sum(door.server.steps for door in self._doors)
        self.now_ps = self.log.on_the_clock(int(self.env.now), steps)
        self.log.arrive(row, self.now_ps)
        self._accept(row, int(workload.prompt_tokens[row]), int(workload.output_tokens[row]))

    def _announce(self) -> Process:
        """Bring all requests on SimPy's clock."""
        while self.next_ps < NEVER_PS:
            if self.next_ps > self.env.now:
                yield self.env.timeout(self.next_ps - int(self.env.now))
            self.bring(self.next_ps)

    def bring(self, until_ps: int) -> None:
        """Queue the requests that come by that time, in order."""
        rows, longest, contents, facts = self._rows, self.longest[0], self.workload.content, self._facts
        plain = self._doors[0].server.waiting if self._plain else None
        index, arrival_ps, prompt, output = self._next_row
        while arrival_ps <= until_ps:
            self.now_ps = arrival_ps
            if plain is not None and prompt + output <= longest:
                request = Request(index, prompt, output)
                request.arrival_ps = arrival_ps
                if contents is not None and contents[index]:
                    request.write(contents[index])
                if facts is not None:
                    request.facts = facts[index]
                plain.append(request)
            else:
                self._accept(index, prompt, output)
            index, arrival_ps, prompt, output = next(rows, NOBODY)
        self._next_row = index, arrival_ps, prompt, output
        self.next_ps = arrival_ps

    def _in_order(self) -> Iterator[Row]:
        """(row, when the engine sees it, prompt, output) of all requests."""
        workload, heard_ps = self.workload, self.workload.heard_ps
        for start in range(0, len(workload), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            columns = (heard_ps[part], workload.prompt_tokens[part], workload.output_tokens[part])
            yield from zip(
                range(start, len(workload)), *(column.tolist() for column in columns), strict=False
            )

    def _accept(self, index: int, prompt: int, output: int, late: bool = False) -> None:
        """Queue a request in all its samples, cutting answers that are too long, or refuse it.

        `late`: it has come before, and its replica died, or none was alive.
        """
        place, request = 0, Request(index, prompt, output)
        request.arrival_ps = self.now_ps
        if self._choose is not None:
            if self.workload.content is not None:
                request.write(self.workload.content[index])
            place = self._choose(request)
            if place == NOWHERE:
                self.turn_away(index)
                return
            if place == NOT_NOW:
                self._held.append(index)
                return
        longest, door = self.longest[place], self._doors[place]
        if late:
            door.comes_late(index)
        most = door.scheduler.longest_answer(door.server, prompt, longest)
        kept = min(output, most)
        request.set_output(kept)
        if prompt >= longest:
            self._refuse(door, index, f"prompt leaves no room for an answer within {longest:,} tokens")
            return
        reason = door.scheduler.refusal(door.server, request, self._sequences(index))
        if reason:
            self._refuse(door, index, reason)
            return
        if kept < output:
            door.recorder.truncate(index, kept)
        door.join(self._samples(request, door.scheduler.forks, most))

    def _sequences(self, row: int) -> int:
        """Number of samples, or candidates, of a request."""
        samples, beam = self.workload.samples, self.workload.beam
        if samples is not None:
            return int(samples.offsets[row + 1] - samples.offsets[row])
        return 1 if beam is None else beam.width

    def _refuse(self, door: Door, row: int, reason: str) -> None:
        door.turn_away(row, self.now_ps, reason)
        door.arrived()
        self.answered(row, self.now_ps)

    def _samples(self, request: Request, forks: bool, most: int) -> list[Request]:
        """What is queued for a request: one object per answer of at most `most` tokens, or a group."""
        workload, index = self.workload, request.index
        if workload.content is not None:
            request.write(workload.content[index])
        if workload.priority is not None:
            request.priority = int(workload.priority[index])
        if self._facts is not None:
            request.facts = self._facts[index]
        lengths = [request.output_tokens]
        if workload.samples is not None:
            first, end = workload.samples.offsets[index : index + 2].tolist()
            lengths = [min(length, most) for length in workload.samples.tokens[first:end].tolist()]
            request.own = first
        if forks:
            request.group = Group(request, lengths, workload.beam.width if workload.beam else 1)
            return [request]
        if workload.samples is not None:
            request.set_output(lengths[0])
        return [request, *(request.as_sample(k, length) for k, length in enumerate(lengths[1:], 1))]
