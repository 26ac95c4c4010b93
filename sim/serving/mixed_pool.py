"""The mixed pool: prefill and decode replicas that serve requests alone while the other side is overloaded.

    prompts wait    every prefill replica has a queue, and with the prompt more than so many pending tokens
    memory full     no decode replica has room for the prompt beside its share of those on their way
    then            of mixed replicas with room and a short queue that with the fewest pending tokens, or, if
                    there is none, one joins: a decode replica if prompts wait, a prefill replica if memory is
                    full, any if both
    back            a mixed replica returns when all requests that it got as such are answered

A mixed replica computes prompts and answers, as a server of role `both`, and gets no other requests of its
own side while others can take them. Pending are the tokens of prompts that are not computed, and one for each
request that decodes.

Follows Splitwise (Patel et al., ISCA 2024, section IV.A) and the MixedPoolScheduler of its authors' simulator
(Mutinifni/splitwise-sim at 8f99e7d), there with 8,192 tokens. In that simulator both sides of a request are
chosen as it arrives, by the length of its answer, which is not known here; its two parts may be on different
mixed machines; and a machine returns when it is idle.
"""

from collections.abc import Container, Sequence
from typing import NamedTuple

from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.serving.dispatcher import Dispatcher, View
from kvsim.sim.serving.intake import NOT_NOW
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.request import Request, State


class Change(NamedTuple):
    """A replica joins the mixed pool, or is seen to have left it."""

    at_ps: int
    place: int
    joins: bool


class MixedPool:
    """Which replicas are mixed.

    Parameters
    ----------
    most_tokens : int
        Most pending tokens of a replica whose queue is short.
    under_way : mapping
        Names of requests whose prompts are for a decode replica.

    Attributes
    ----------
    requests : int
        Requests that mixed replicas got as such.
    changes : list of Change
        In order of time.
    """

    def __init__(self, most_tokens: int, under_way: Container[int]) -> None:
        self._most_tokens, self._under_way = most_tokens, under_way
        self._rows: dict[int, list[int]] = {}  # by place, the rows that a mixed replica got as such
        self._coming: dict[int, int] = {}  # row -> prompt tokens that a decode replica will get
        self.requests = 0
        self.changes: list[Change] = []

    def begin(self, log: RequestLog, replicas: Sequence[Replica]) -> None:
        """The run begins."""
        self._log, self._replicas = log, replicas

    def place(self, request: Request, first: Dispatcher, second: Dispatcher, now_ps: int) -> tuple[int, bool]:
        """The replica for an arrival, and whether it serves all of it.

        `first` knows the prefill replicas, `second` the decode replicas.
        """
        self._settle(now_ps)
        place, alone = self._choose(request, first, second, now_ps)
        if place == NOT_NOW:
            place = first.place(request)
        if place >= 0 and not alone:
            self._coming[request.index] = request.prompt_tokens
        return place, alone

    def _choose(
        self, request: Request, first: Dispatcher, second: Dispatcher, now_ps: int
    ) -> tuple[int, bool]:
        """As `place`; NOT_NOW: no replica in particular."""
        coming_tokens = sum(self._coming.values())
        prefill, decode = (self._unmixed(each) for each in (first, second))
        short = [view for view in prefill if self._is_short(view, request)]
        roomy = [view for view in decode if _free(view, request) * len(decode) >= coming_tokens]
        if short and roomy:
            return _among(short, first, request), False
        mixed = [view for view in (*first.seen, *second.seen) if view.place in self._rows]
        mixed = [view for view in mixed if _free(view, request) >= 0 and self._is_short(view, request)]
        joining = [*(() if short else decode), *(() if roomy else prefill)]
        found = [view for view in mixed or joining if self._ever_fits(view, request)]
        if not found:
            return NOT_NOW, False
        chosen = min(found, key=self._pending if mixed or not short else lambda view: view.used_tokens)
        place = _among([chosen], first if first.sends_to(chosen.place) else second, request)
        if place != NOT_NOW:
            if place not in self._rows:
                self._rows[place] = []
                self.changes.append(Change(now_ps, place, True))
            self._rows[place].append(request.index)
            self.requests += 1
        return place, place != NOT_NOW

    def deliver(self, request: Request, second: Dispatcher, now_ps: int) -> int:
        """The decode replica for a computed prompt: a mixed one only if there is no other."""
        self._settle(now_ps)
        place = _among(self._unmixed(second), second, request)
        if place == NOT_NOW:
            place = second.place(request)
        if place >= 0:
            self._coming.pop(request.index, None)
        return place

    def lose(self, place: int, now_ps: int) -> None:
        """A replica is gone."""
        if self._rows.pop(place, None) is not None:
            self.changes.append(Change(now_ps, place, False))

    def _settle(self, now_ps: int) -> None:
        """Replicas whose mixed requests are all answered return to their side; refused prompts never come."""
        self._coming = {row: tokens for row, tokens in self._coming.items() if not self._log.is_over(row)}
        for place, rows in [*self._rows.items()]:
            self._rows[place] = left = [row for row in rows if not self._log.is_over(row)]
            if not left:
                self.lose(place, now_ps)

    def _unmixed(self, dispatcher: Dispatcher) -> list[View]:
        return [view for view in dispatcher.seen if view.place not in self._rows]

    def _queued(self, view: View) -> list[Request]:
        """Requests in its queue whose prompts it computes."""
        replica = self._replicas[view.place]
        replica.catch_up()
        queued = [*replica.server.waiting, *replica.input_queue.requests]
        return queued if view.role == "prefill" else [r for r in queued if r.own not in self._under_way]

    def _pending(self, view: View) -> int:
        queued, server = self._queued(view), self._replicas[view.place].server
        computing = [each for each in server.running.values() if each.state == State.PREFILL]
        return sum([each.known_tokens for each in (*queued, *computing)]) + server.decoding

    def _is_short(self, view: View, request: Request) -> bool:
        """Whether its queue is short, also with this request."""
        return not self._queued(view) or self._pending(view) + request.prompt_tokens <= self._most_tokens

    def _ever_fits(self, view: View, request: Request) -> bool:
        return self._replicas[view.place].server.allocator.fits(request.final_tokens, request.final_tokens)


def _free(view: View, request: Request) -> int:
    """Tokens for which it has room beside its queue and this prompt; negative: they do not fit."""
    return view.capacity_tokens - view.used_tokens - view.waiting_tokens - request.prompt_tokens


def _among(views: Sequence[View], dispatcher: Dispatcher, request: Request) -> int:
    """The router's choice among these; NOT_NOW: none, or the request's session is elsewhere."""
    places = {view.place for view in views}
    return dispatcher.place(request, lambda seen: seen.place in places)
