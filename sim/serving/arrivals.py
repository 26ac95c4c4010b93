"""Arrivals: requests at times of their own, and requests that wait for an earlier answer.

    open      each request at its time in the workload
    Chain     a request some time after the answer to another: the next turn of a chat
    Clients   a closed loop: each client sends its next request some time after its last answer

Requests are read one by one from the columns of the workload, and become objects when they arrive.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush

import simpy
from simpy.events import NORMAL

from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.serving.alarm import AFTER_ENDS, Process, happening
from kvsim.sim.serving.decision import NEVER_PS
from kvsim.sim.serving.intake import Door, Intake
from kvsim.sim.serving.request import Request
from kvsim.sim.workload import Chain, Clients

ROWS_AT_ONCE = 8192
"""Requests are taken from the columns in chunks, so that a long trace is never a list of objects."""
Row = tuple[int, int, int, int]
"""(index, arrival_ps, prompt_tokens, output_tokens) of a request."""
NOBODY: Row = (0, NEVER_PS, 0, 0)


class Promise:
    """A time before which no request comes; by default none ever comes."""

    def __init__(self, next_ps: int = NEVER_PS) -> None:
        self.next_ps = next_ps


class Arrivals(Promise):
    """Brings the requests of a workload, each at its time; `intake` puts them into queues.

    Parameters
    ----------
    longest : sequence of int
        Tokens of the longest sequence of each door.

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
        self.intake = Intake(log, longest)
        self.now_ps = 0
        self.wait_for_answers = log.workload.waits is not None
        self._plain = False  # can requests be queued directly, with nothing to check?
        self._rows: Iterator[Row] = iter(())
        self._next_row: Row = NOBODY
        self._asked = 0  # requests that the clients of a closed loop have taken
        self._followers: dict[int, list[int]] = {}  # row -> the rows that wait for its answer
        self._meet: Callable[[], None] | None = None
        self._coming: list[int] = []  # arrival times of rows not taken from the columns in order

    def begin(
        self,
        doors: Sequence[Door],
        choose: Callable[[Request], int] | None = None,
        meet: Callable[[], None] | None = None,
    ) -> None:
        """Schedule the first arrivals with SimPy; with several doors, `choose` picks one per request.

        `meet` is called when a request follows an answer at once, which it does after all ends of steps.
        """
        self.intake.begin(doors, choose, self.answered)
        waits, workload = self.workload.waits, self.workload
        if waits is None:
            self._rows = self._in_order()
            self._next_row = next(self._rows, NOBODY)
            self.next_ps = self._next_row[1]
            self._plain = self.intake.is_plain()
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
        self._meet = meet

    def end(self) -> None:
        """No more requests come: drop the replicas, which refer to these arrivals."""
        self.intake.end()
        self._meet = None

    def again(self, row: int) -> None:
        """Bring a request once more: the replica it was sent to is gone."""
        self.now_ps = int(self.env.now)
        self.intake.take_again(row, self.now_ps)

    def turn_away(self, row: int) -> None:
        """A request that came can never be served, because no replica is alive."""
        self.now_ps = int(self.env.now)
        self.intake.turn_away(row, self.now_ps)

    def opened(self) -> None:
        """A door is open: requests that waited for any door come now."""
        if self.intake.held:
            self.now_ps = int(self.env.now)
            self.intake.reopen(self.now_ps)

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
        priority: int = NORMAL
        if when_ps == self.env.now and self._meet is not None:
            self._meet()
            priority = AFTER_ENDS
        event = happening(self.env, when_ps, priority)
        event.callbacks.append(lambda _: self._arrive_late(row))

    def _arrive_late(self, row: int) -> None:
        heappop(self._coming)
        self.next_ps = self._coming[0] if self._coming else NEVER_PS
        workload = self.workload
        steps = sum(door.server.steps for door in self.intake.doors)
        self.now_ps = self.log.on_the_clock(int(self.env.now), steps)
        self.log.arrive(row, self.now_ps)
        prompt, output = int(workload.prompt_tokens[row]), int(workload.output_tokens[row])
        self.intake.take(row, prompt, output, self.now_ps)

    def _announce(self) -> Process:
        """Bring all requests on SimPy's clock."""
        while self.next_ps < NEVER_PS:
            if self.next_ps > self.env.now:
                yield self.env.timeout(self.next_ps - int(self.env.now))
            self.bring(self.next_ps)

    def bring(self, until_ps: int) -> None:
        """Queue the requests that come by that time, in order."""
        rows, contents, intake = self._rows, self.workload.content, self.intake
        longest, facts = intake.longest[0], intake.facts
        plain = intake.doors[0].server.waiting if self._plain else None
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
                intake.take(index, prompt, output, arrival_ps)
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
