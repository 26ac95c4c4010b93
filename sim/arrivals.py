"""Who arrives: requests at times of their own, and those that wait for an earlier answer.

    open      each request at its time in the workload
    Chain     a request some time after the answer to another one: the next turn of a chat
    Clients   a closed loop: each client asks the next request some time after its last answer

Requests come one by one from the columns of the workload, and become objects when they arrive.
"""

from collections.abc import Generator

import simpy

from kvsim.sim.recorder import Recorder
from kvsim.sim.request import Group, Request
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.server import Server
from kvsim.sim.workload import Chain, Clients, Workload

ROWS_AT_ONCE = 8192
"""Requests are taken from the columns in portions, so that a long trace is never a list of objects."""

Process = Generator[simpy.Event, None, None]


class Arrivals:
    """Puts the requests of a workload into the queue, each in its time; counts those that cannot be served.

    Parameters
    ----------
    longest : int
        Tokens of the longest sequence; longer answers are cut, prompts that leave no room refused.
    """

    def __init__(  # noqa: PLR0917 - the parts of an engine
        self,
        env: simpy.Environment,
        workload: Workload,
        server: Server,
        scheduler: Scheduler,
        recorder: Recorder,
        longest: int,
    ) -> None:
        self.env = env
        self.workload = workload
        self.server = server
        self.scheduler = scheduler
        self.recorder = recorder
        self.longest = longest
        self._asked = 0  # requests that the clients of a closed loop have taken
        self._followers: dict[int, list[int]] = {}  # by row: the rows that wait for its answer

    def begin(self) -> None:
        """Let SimPy know of the first arrivals."""
        waits, workload = self.workload.waits, self.workload
        if waits is None:
            self.env.process(self._arrive())
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

    def answered(self, row: int, now_ps: int) -> None:
        """A request has all its answers, or will never have them: who waited for it asks later."""
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
        """Let a row arrive later; the engine's time, from which it is counted, may be ahead of SimPy's."""
        event = self.env.timeout(when_ps - int(self.env.now))
        event.callbacks.append(lambda _: self._arrive_late(row))

    def _arrive_late(self, row: int) -> None:
        workload = self.workload
        self.recorder.arrive(row, int(self.env.now))
        self._accept(row, int(workload.prompt_tokens[row]), int(workload.output_tokens[row]))

    def _arrive(self) -> Process:
        """Put the requests into the queue, each in its time; those that can never be served are counted."""
        env, waiting, workload, longest = self.env, self.server.waiting, self.workload, self.longest
        contents = workload.content
        plain = workload.samples is None and workload.priority is None and not self.scheduler.forks
        plain = plain and self.server.allocator.fits(longest, longest)
        now = 0
        for start in range(0, len(workload), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            columns = (workload.arrival_ps[part], workload.prompt_tokens[part], workload.output_tokens[part])
            rows = zip(*(column.tolist() for column in columns), strict=True)
            for index, (arrival_ps, prompt, output) in enumerate(rows, start):
                if arrival_ps > now:
                    yield env.timeout(arrival_ps - now)
                    now = arrival_ps
                if plain and prompt + output <= longest:
                    request = Request(index, prompt, output)
                    if contents is not None and contents[index]:
                        request.write(contents[index])
                    waiting.append(request)
                else:
                    self._accept(index, prompt, output)

    def _accept(self, index: int, prompt: int, output: int) -> None:
        """Queue a request in all its samples: with answers cut where they are too long, or not at all."""
        longest = self.longest
        if prompt >= longest:
            self._refuse(index, f"prompt leaves no room for an answer within {longest:,} tokens")
            return
        kept = min(output, longest - prompt)
        request = Request(index, prompt, kept)
        reason = self.scheduler.refusal(self.server, request, self._sequences(index))
        if reason:
            self._refuse(index, reason)
            return
        if kept < output:
            self.recorder.truncate(index, kept)
        for sample in self._samples(request):
            self.server.waiting.append(sample)

    def _sequences(self, row: int) -> int:
        """Samples, or candidates, of a request."""
        samples, beam = self.workload.samples, self.workload.beam
        if samples is not None:
            return int(samples.offsets[row + 1] - samples.offsets[row])
        return 1 if beam is None else beam.width

    def _refuse(self, row: int, reason: str) -> None:
        now, events = int(self.env.now), self.server.events
        self.recorder.reject(reason)
        if events:
            events.rejected(row, now, events.step_at(now), reason)
        self.answered(row, now)

    def _samples(self, request: Request) -> list[Request]:
        """What waits for a request: one object for each answer, or a group that will fork."""
        workload, index = self.workload, request.index
        if workload.content is not None:
            request.write(workload.content[index])
        if workload.priority is not None:
            request.priority = int(workload.priority[index])
        lengths = [request.output_tokens]
        if workload.samples is not None:
            first, end = workload.samples.offsets[index : index + 2].tolist()
            room = self.longest - request.prompt_tokens
            lengths = [min(length, room) for length in workload.samples.tokens[first:end].tolist()]
            request.own = first
        if self.scheduler.forks:
            request.group = Group(request, lengths, workload.beam.width if workload.beam else 1)
            return [request]
        if workload.samples is not None:
            request.set_output(lengths[0])
        return [request, *(request.as_sample(k, length) for k, length in enumerate(lengths[1:], 1))]
