"""Intake: what becomes of a request that has come: which server, how long an answer, refusal, a queue.

Arrivals    when it comes                  arrivals.py
Intake      which server, and as what      this file
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from kvsim.sim.record.recorder import Recorder
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.serving.facts import Facts, facts_of
from kvsim.sim.serving.faults import NEVER_ALIVE
from kvsim.sim.serving.request import Group, Request
from kvsim.sim.serving.server import Server

NOT_NOW: Final = -1
NOWHERE: Final = -2
"""Not doors: the request cannot be sent on before one opens, or ever."""


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


class Intake:
    """Puts requests that have come into the queues of servers, or refuses them.

    Parameters
    ----------
    longest : sequence of int
        Tokens of the longest sequence of each door; longer answers are cut, prompts that leave no room are
        refused.

    Attributes
    ----------
    facts : sequence of Facts, or None
        Of each row, if a policy reads them.
    held : list of int
        Rows that wait for any door to open.
    """

    def __init__(self, log: RequestLog, longest: Sequence[int]) -> None:
        self.longest = longest
        self.doors: Sequence[Door] = ()
        self.facts: Sequence[Facts] | None = None
        self.held: list[int] = []
        self._log, self._workload = log, log.workload
        self._choose: Callable[[Request], int] | None = None
        self._tell: Callable[[int, int], None] | None = None

    def begin(
        self,
        doors: Sequence[Door],
        choose: Callable[[Request], int] | None,
        tell: Callable[[int, int], None],
    ) -> None:
        """Requests come from now on; with several doors, `choose` picks one per request.

        `tell` is called for a request that is refused, with its row and the time.
        """
        self.doors, self._choose, self._tell = doors, choose, tell
        if any(each.scheduler.reads_facts for each in doors):
            self.facts = facts_of(self._workload.labels)

    def end(self) -> None:
        """No more requests come: drop the replicas and the arrivals, which refer to this."""
        self.doors, self._choose, self._tell = (), None, None

    def is_plain(self) -> bool:
        """Whether requests no longer than the longest can be queued directly, with nothing to check."""
        workload, longest, door = self._workload, self.longest[0], self.doors[0]
        plain = workload.samples is None and workload.priority is None and not door.scheduler.forks
        plain = plain and door.scheduler.longest_answer(door.server, 1, longest) == longest - 1
        plain = plain and type(door.scheduler).refusal is Scheduler.refusal
        return self._choose is None and plain and door.server.allocator.fits(longest, longest)

    def take(self, row: int, prompt: int, output: int, now_ps: int) -> None:
        """Queue a request in all its samples, cutting answers that are too long, or refuse it."""
        request = Request(row, prompt, output)
        request.arrival_ps = now_ps
        place = self._place(request)
        if place >= 0:
            self._enter(request, place)

    def take_again(self, row: int, now_ps: int) -> None:
        """The same for a request that came before: its replica died, or none was alive."""
        workload = self._workload
        request = Request(row, int(workload.prompt_tokens[row]), int(workload.output_tokens[row]))
        request.arrival_ps = now_ps
        place = self._place(request)
        if place >= 0:
            self.doors[place].comes_late(row)
            self._enter(request, place)

    def reopen(self, now_ps: int) -> None:
        """A door is open: requests that waited for any door come now."""
        rows, self.held = self.held, []
        for row in rows:
            self.take_again(row, now_ps)

    def _place(self, request: Request) -> int:
        """The door of a request; negative: there is none, and it is held or turned away."""
        if self._choose is None:
            return 0
        if self._workload.content is not None:
            request.write(self._workload.content[request.index])
        place = self._choose(request)
        if place == NOWHERE:
            self.turn_away(request.index, request.arrival_ps)
        elif place == NOT_NOW:
            self.held.append(request.index)
        return place

    def _enter(self, request: Request, place: int) -> None:
        row, now_ps = request.index, request.arrival_ps
        prompt, output = request.prompt_tokens, request.output_tokens
        longest, door = self.longest[place], self.doors[place]
        most = door.scheduler.longest_answer(door.server, prompt, longest)
        kept = min(output, most)
        request.set_output(kept)
        if prompt >= longest:
            no_room = f"prompt leaves no room for an answer within {longest:,} tokens"
            self._refuse(door, row, now_ps, no_room)
            return
        reason = door.scheduler.refusal(door.server, request, self._sequences(row))
        if reason:
            self._refuse(door, row, now_ps, reason)
            return
        if kept < output:
            door.recorder.truncate(row, kept)
        door.join(self._samples(request, door.scheduler.forks, most))

    def turn_away(self, row: int, now_ps: int) -> None:
        """A request that came can never be served, because no replica is alive."""
        self._refuse(self.doors[self._log.place_of(row)], row, now_ps, NEVER_ALIVE)

    def _sequences(self, row: int) -> int:
        """Number of samples, or candidates, of a request."""
        samples, beam = self._workload.samples, self._workload.beam
        if samples is not None:
            return int(samples.offsets[row + 1] - samples.offsets[row])
        return 1 if beam is None else beam.width

    def _refuse(self, door: Door, row: int, now_ps: int, reason: str) -> None:
        door.turn_away(row, now_ps, reason)
        door.arrived()
        if self._tell is not None:
            self._tell(row, now_ps)

    def _samples(self, request: Request, forks: bool, most: int) -> list[Request]:
        """What is queued for a request: one object per answer of at most `most` tokens, or a group."""
        workload, index = self._workload, request.index
        if workload.content is not None:
            request.write(workload.content[index])
        if workload.priority is not None:
            request.priority = int(workload.priority[index])
        if self.facts is not None:
            request.facts = self.facts[index]
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
