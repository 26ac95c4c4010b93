"""Prompts are pushed, as SGLang does: both servers of a request are chosen on arrival, and sent it at once.

    decode     room reserved ......................................... all pieces here, decodes
    prefill           | waits for that, queue | piece | piece | rest |
    link                                             | piece | piece | rest |

The prefill server may begin when the decode server has reserved room. After each step, the pages that are
full are sent, and after the last one the rest; they are kept until all of it has arrived.

Follows sgl-project/sglang, python/sglang/srt/disaggregation: `PrefillBootstrapQueue` and `send_kv_chunk` in
prefill.py, `DecodePreallocQueue` and `DecodeTransferQueue` in decode.py.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol, overload

import numpy as np

from kvsim.allocators.base import InvariantError
from kvsim.sim.serving.dispatcher import Dispatcher
from kvsim.sim.serving.hand_over import HandOver, Read, prompt_of
from kvsim.sim.serving.held import HoldingServer
from kvsim.sim.serving.intake import NOT_NOW, Door
from kvsim.sim.serving.link import Link
from kvsim.sim.serving.receiving import ReceivingServer
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.request import Request
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.sglang_parts import WaitingList
from kvsim.sim.workload import Int64Column


class Bootstrap(WaitingList):
    """Prompts to compute; those for which the decode side has no room yet come last.

    Attributes
    ----------
    unready : dict of Request
        Those, by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unready: dict[int, Request] = {}
        self._told: set[int] = set()

    def append(self, request: Request) -> None:
        """Queue a request: only its prompt is computed here."""
        prompt = prompt_of(request)
        super().append(prompt)
        self.unready[prompt.own] = self._waiting.pop()

    appendleft = append

    def tell(self, name: int) -> None:
        """The decode side has reserved room for a request, which may not have been heard of here."""
        self._told.add(name)

    def take(self, most: int) -> None:
        """Of those that may be computed, queue up to `most` in order of arrival."""
        if self._told:
            ready = sorted(self._told & self.unready.keys(), key=lambda name: self.came(self.unready[name]))
            for name in ready[:most]:
                self._told.remove(name)
                self._waiting.append(self.unready.pop(name))

    def __getitem__(self, index: int) -> Request:
        return next(islice(self, index, None))

    def __len__(self) -> int:
        return len(self._waiting) + len(self.unready)

    def __iter__(self) -> Iterator[Request]:
        return chain(self._waiting, self.unready.values())


@dataclass
class Sending:
    """A prompt on its way."""

    prefill: int
    """place of the replica that computes it"""
    decode: int
    """place of the replica that gets it"""
    sent: int = 0
    """tokens that were sent, or were cached there"""
    begun_ps: int = -1


class Answers(Protocol):
    """What a decode server's scheduler says of its memory."""

    def longest_here(self, prompt: int, longest: int) -> int:
        """Tokens at which an answer is truncated."""

    def never_fits(self, request: Request) -> str:
        """Why a request can never be answered there, or ""."""


class BothDoors:
    """Where requests enter: a prefill replica, and the decode replica chosen with it."""

    def __init__(self, prefill: Replica, joins: Callable[[int, Request], None]) -> None:
        self._prefill, self._joins = prefill, joins
        self.server, self.scheduler, self.recorder = prefill.server, prefill.scheduler, prefill.recorder

    def join(self, requests: Iterable[Request]) -> None:
        """Requests have come."""
        for request in requests:
            self._joins(self._prefill.place, request)

    def comes_late(self, row: int) -> None:
        """A request is sent here that has come before."""
        self._prefill.comes_late(row)

    def arrived(self) -> None:
        """A request was turned away."""
        self._prefill.arrived()

    def turn_away(self, row: int, now_ps: int, reason: str) -> None:
        """A request can never be served."""
        self._prefill.turn_away(row, now_ps, reason)


class Doors(Sequence[Door]):
    """The doors of all replicas, some of which may be replaced."""

    def __init__(self, replicas: Sequence[Replica], joins: Callable[[int, Request], None]) -> None:
        self._replicas, self._joins = replicas, joins

    def __len__(self) -> int:
        return len(self._replicas)

    @overload
    def __getitem__(self, place: int) -> Door: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Door]: ...

    def __getitem__(self, place: int | slice) -> Door | Sequence[Door]:
        if isinstance(place, slice):
            return Doors(self._replicas[place], self._joins)
        return BothDoors(self._replicas[place], self._joins)


class Pushes(HandOver):
    """Sends prompts to decode replicas while they are computed."""

    def __init__(self) -> None:
        super().__init__()
        self._answer_at: dict[int, int] = {}  # by row, the place of the decode replica
        self._sending: dict[int, Sending] = {}  # by name
        self._reads: list[Read] = []
        self._reserved_ps: dict[int, int] = {}  # by row
        self._bytes = 0
        self._decode: dict[int, tuple[Link, int]] = {}  # by the server's identity: its link and its GPUs
        self._schedulers: list[Answers] = []

    def decodes(self, server: Server, link: Link, gpus: int) -> None:
        """Prompts arrive at this decode server, of so many GPUs, over this link."""
        self._decode[id(server)] = link, gpus

    def answers(self, scheduler: Answers) -> None:
        """Register the scheduler of a decode server."""
        self._schedulers.append(scheduler)

    def doors(self, replicas: Sequence[Replica]) -> Sequence[Door]:
        """As in the base: requests enter both of their servers."""
        return Doors(replicas, self._join)

    # -- one request --------------------------------------------------------------------------

    def place(self, request: Request, first: Dispatcher) -> int:
        """The prefill replica; the decode replica is chosen, too."""
        if not self._dispatcher.seen:
            return NOT_NOW
        prefill = first.place(request)
        if prefill >= 0:
            self._answer_at[request.index] = self._dispatcher.place(request)
        return prefill

    def _join(self, prefill: int, request: Request) -> None:
        """A request reaches both of its servers."""
        name, decode = request.own, self._answer_at.pop(request.index)
        self.whole[name], self._sending[name] = request, Sending(prefill, decode)
        self._replicas[prefill].join([request])
        self._replicas[decode].join([request])

    def longest_answer(self, prompt: int, longest: int) -> int:
        """Where an answer is truncated by the smallest decode memory."""
        return min(each.longest_here(prompt, longest) for each in self._schedulers)

    def refusal(self, request: Request) -> str:
        """Why a decode server can never hold a request, or ""."""
        return next((reason for each in self._schedulers if (reason := each.never_fits(request))), "")

    def reserved(self, request: Request, cached: int, now_ps: int) -> None:
        """Room is reserved for a prompt, of which the decode server has `cached` tokens."""
        sending = self._sending[request.own]
        self._reserved_ps[request.index] = now_ps
        sending.sent = cached
        replica = self._replicas[sending.prefill]
        assert isinstance(replica.server.waiting, Bootstrap)
        replica.server.waiting.tell(request.own)
        replica.arrived()

    def piece(self, server: HoldingServer, prompt: Request) -> None:
        """A piece of a prompt is computed: its full pages are sent."""
        page, sending = server.allocator.block_slots, self._sending[prompt.own]
        until = prompt.computed - prompt.computed % page
        if until > sending.sent:
            self._send(server, sending, until)

    def computed(self, server: HoldingServer, prompt: Request, blocks: tuple[int, ...]) -> None:
        """The last piece is computed: the rest is sent."""
        whole, sending = self._computed(prompt), self._sending.pop(prompt.own)
        ends_ps = self._send(server, sending, max(prompt.computed, sending.sent))
        self._reads.append((whole.index, sending.begun_ps, ends_ps))
        server.leases.let_go(prompt.own, ends_ps, True)
        replica = self._replicas[sending.decode]
        assert isinstance(replica.server, ReceivingServer)
        replica.server.arrives(whole, ends_ps)
        if (events := replica.server.events) is not None:
            events.loads(whole, server.now_ps, replica.next_step, whole.prompt_tokens)
        replica.arrived()
        del self.whole[prompt.own]

    def _send(self, server: HoldingServer, sending: Sending, until: int) -> int:
        """Send the pages up to a token; returns when they arrive."""
        into, gpus = self._decode[id(self._replicas[sending.decode].server)]
        pages = -(-(until - sending.sent) // server.allocator.block_slots)
        if sending.begun_ps < 0:
            sending.begun_ps = server.now_ps
        sending.sent = until
        self._bytes += pages * into.block_bytes * gpus
        return into.copied_from_ps(self._ways_out[id(server)], pages, server.now_ps)

    def first_token(self, server: Server, request: Request) -> None:
        """The first token of a request came with its prompt: it is answered from here on."""
        self._of[id(server)].commit.give_token(request)

    # -- servers that die and come back -------------------------------------------------------

    def lose(self, dead: Replica, now_ps: int) -> list[int]:
        """As in the base: no server dies."""
        raise InvariantError(f"replica {dead.place} dies, and its prompts were pushed")

    def opened(self, now_ps: int) -> None:
        """Arrivals wait for both of their servers."""

    # -- the end ------------------------------------------------------------------------------

    def reads(self) -> list[Read]:
        """Prompts that were sent: from the first piece to the end of the last."""
        return self._reads

    def stages(self, rows: int) -> dict[str, Int64Column]:
        """As in the base, and when room was reserved."""
        reserved_ps = np.zeros(rows, np.int64)
        for row, at_ps in self._reserved_ps.items():
            reserved_ps[row] = at_ps
        return {"reserved_ps": reserved_ps, **super().stages(rows)}

    def copied_bytes(self) -> int:
        """Bytes that were sent."""
        return self._bytes
