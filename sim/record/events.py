"""What happens to each request, and why: recorded on request, for reports that explain a run.

    admit      it enters the memory: `tokens` in total, of which `cached` were in the prefix cache
    refuse     it heads the queue and is not admitted, for this `reason`, recorded when it changes:
               no room, with the slots that it `need`s, those `free`, and the `largest` free extent;
               watermark; seats; token budget; eviction (no request enters in such a step); batch (it is not
               over); swapped (they come first); future peak (it and the running requests would need too much
               at once, or it is not yet its turn); same prefix (another computes what it could share);
               storage (it waits for a read from storage); reservation (the server that is to answer it has
               no room yet)
    decode     its prompt, or its recomputation, is done and produced a token
    preempt    it is evicted and will be recomputed: `tokens` are lost; request `by` took the room, or with a
               `reason` the policy put `by` first
    set_aside  it gives up its seat to `by`, which the policy put first for this `reason`, and keeps the
               memory of its `tokens`
    resume     it has a seat again and decodes on
    swap_out   it goes to the host pool with `tokens`, for the room that `by` took
    swap_in    it is back
    reserve    room for `tokens` of its prompt is set aside here, and another server may compute them
    load       `tokens` of its prompt are found elsewhere: it holds memory and waits for them
    load_beside  `tokens` are loaded from the host while the step that it enters computes, layer by layer
    load_first  `tokens` are loaded from the host before the step that it enters computes
    loaded     they have arrived, and it waits to be scheduled unless it runs already
    ask        a storage tier below the host is asked for `tokens`
    fetched    the host has `tokens` from there: all that existed, or all that came before it stopped waiting
    fork       another sequence shares its `tokens`
    copy       `tokens` slots are copied: on a write into a shared block, or to move to a larger extent
    hand_over  its prompt is computed, and its `tokens` are held for another server to read
    move_out   it stops with `tokens`; the last of them are copied to another replica
    move_in    all of its `tokens` are here, and it decodes on; `sample` counts its moves
    finish     the last token of a sequence is done
    lost       its replica died, as the `reason` says, with its `tokens` in memory: it starts over
    send       the router sends it here later than it arrived: it starts over, or no replica was alive
    reject     it can never be served: `reason`

Decisions have their step's start time; `decode`, `finish` and the forks after a prompt have its end time.
A `reject` at an arrival, a `send` and a `lost` have that moment's time, and the first step that starts then
or later.
If replicas may die, `resent` is how often the request had been sent again by then. Events do not change a
run: its results are the same integers without them.
"""

from array import array
from collections.abc import Sequence
from struct import pack
from typing import NamedTuple

import numpy as np

from kvsim.allocators.base import Allocator
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.serving.request import Request
from kvsim.sim.workload import Int64Column

NO_ROOM = "no room"
TOKEN_BUDGET = "token budget"
FUTURE_PEAK = "future peak"
SAME_PREFIX = "same prefix"
STORAGE = "storage"
RESERVATION = "reservation"
TIER = "tier"
NUMBERS = ("time_ps", "step", "request", "sample", "tokens", "cached", "by", "need", "free", "largest")
AT_ONCE = 4096
"""Numbers moved into an array at a time."""
NONE = int(np.iinfo(np.int64).min)
"""Stands for a missing number in a column."""


class Texts(NamedTuple):
    """A column of texts with few distinct values: row i is `texts[codes[i]]`."""

    codes: Int64Column
    texts: list[str]

    @classmethod
    def joined(cls, columns: Sequence["Texts"]) -> "Texts":
        """The rows of several columns, one after the other."""
        code: dict[str, int] = {}
        codes = [
            np.array([code.setdefault(text, len(code)) for text in column.texts], dtype=np.int64)[
                column.codes
            ]
            for column in columns
        ]
        return cls(np.concatenate(codes), list(code))

    def in_order(self, order: Int64Column) -> "Texts":
        """The rows in another order; texts are numbered by first appearance."""
        codes = self.codes[order]
        used, first = np.unique(codes, return_index=True)
        used = used[np.argsort(first)]
        place = np.zeros(len(self.texts), dtype=np.int64)
        place[used] = np.arange(len(used))
        return Texts(place[codes], [self.texts[code] for code in used.tolist()])


class TextColumn:
    """Collects a column of texts."""

    def __init__(self) -> None:
        self._codes: list[int] = []
        self._code: dict[str, int] = {}

    def append(self, text: str) -> None:
        """Add a row."""
        self._codes.append(self._code.setdefault(text, len(self._code)))

    def __len__(self) -> int:
        return len(self._codes)

    def texts(self) -> Texts:
        """The rows so far."""
        return Texts(np.array(self._codes, dtype=np.int64), list(self._code))


class Refusal(NamedTuple):
    """Why a request was not admitted."""

    request: Request
    need_slots: int


class Displacer(NamedTuple):
    """A waiting request that a policy prefers to running ones, and why."""

    request: Request
    reason: str


class Events:
    """Collects events while the engine runs; `table` has a row per event.

    Parameters
    ----------
    log : RequestLog, optional
        Knows how often each request was sent again, if replicas may die.

    Attributes
    ----------
    changed : bool
        Whether the last step changed anything, or a request has finished since.
    """

    def __init__(self, log: RequestLog | None = None) -> None:
        self.changed = True
        self._log = log
        self._columns = NUMBERS if log is None else (*NUMBERS, "resent")
        self._numbers = array("q")  # rows of _columns
        self._latest: list[int] = []  # not yet in _numbers
        self._event, self._reason = TextColumn(), TextColumn()
        self._last_refusal: tuple[int, int, str] | None = None  # request, sample and reason

    def admitted(self, request: Request, now_ps: int, step: int, tokens: int, cached: int) -> None:
        """A request entered the memory."""
        self._last_refusal = None
        self._add("admit", request, now_ps, step, tokens=tokens, cached=cached)

    def refused(  # noqa: PLR0917 - the columns
        self,
        request: Request,
        now_ps: int,
        step: int,
        reason: str,
        need: int,
        allocator: Allocator,
        happened: bool,
    ) -> None:
        """The head of the queue was not admitted; recorded once, until the head or the reason changes.

        The reason is checked only when something `happened`, not while sequences merely decode, so it does
        not depend on whether steps are taken one by one or in bulk.
        """
        refusal = (request.index, request.sample, reason)
        if refusal != self._last_refusal and (
            happened or self._last_refusal is None or refusal[:2] != self._last_refusal[:2]
        ):
            self._last_refusal = refusal
            free, largest = allocator.free_slots, allocator.largest_free_extent()
            self._add("refuse", request, now_ps, step, reason, need=need, free=free, largest=largest)

    def decodes(self, request: Request, now_ps: int, step: int) -> None:
        """A prompt, or a recomputation, is complete."""
        self._add("decode", request, now_ps, step, tokens=request.computed)

    def left(  # noqa: PLR0917 - the columns
        self,
        event: str,
        request: Request,
        now_ps: int,
        step: int,
        by: Request | None,
        displacer: Displacer | None = None,
    ) -> None:
        """A request was preempted, set aside or swapped out; records what it holds now.

        It made room for `by`, or else gave way to the `displacer`.
        """
        reason = ""
        if by is None and displacer is not None:
            by, reason = displacer
        whose = NONE if by is None else by.index
        self._add(event, request, now_ps, step, reason, tokens=request.computed, by=whose)

    def loads(self, request: Request, now_ps: int, step: int, tokens: int) -> None:
        """Loading `tokens` of a prompt begins."""
        self._last_refusal = None
        self._add("load", request, now_ps, step, tokens=tokens)

    def reserves(self, request: Request, now_ps: int, step: int) -> None:
        """There is room for the tokens of a prompt that another server is to compute."""
        self._add("reserve", request, now_ps, step, tokens=request.computed)

    def loads_beside(self, request: Request, now_ps: int, step: int, tokens: int) -> None:
        """`tokens` of a prompt are loaded while the step being decided computes."""
        self._add("load_beside", request, now_ps, step, tokens=tokens)

    def loads_first(self, request: Request, now_ps: int, step: int, tokens: int) -> None:
        """`tokens` of a prompt are loaded before the step being decided computes."""
        self._add("load_first", request, now_ps, step, tokens=tokens)

    def loaded(self, request: Request, now_ps: int, step: int, tokens: int) -> None:
        """The load has arrived."""
        self._add("loaded", request, now_ps, step, tokens=tokens)

    def asks(self, request: Request, now_ps: int, step: int, tokens: int) -> None:
        """A storage is asked for `tokens` of a prompt."""
        self._add("ask", request, now_ps, step, tokens=tokens)

    def fetched(self, request: Request, now_ps: int, step: int, tokens: int) -> None:
        """`tokens` came from storage; the next refusal is recorded again."""
        self._last_refusal = None
        self._add("fetched", request, now_ps, step, tokens=tokens)

    def returned(self, request: Request, now_ps: int, step: int) -> None:
        """A request came back from the host pool."""
        self._add("swap_in", request, now_ps, step, tokens=request.computed)

    def resumed(self, request: Request, now_ps: int, step: int) -> None:
        """A request that was set aside decodes again."""
        self._last_refusal = None
        self._add("resume", request, now_ps, step, tokens=request.computed)

    def forked(self, child: Request, now_ps: int, step: int) -> None:
        """A sequence shares everything that another one of its request holds."""
        self._add("fork", child, now_ps, step, tokens=child.computed)

    def copied(self, request: Request, now_ps: int, step: int, slots: int) -> None:
        """Slots were copied for a request; zero slots get no row."""
        if slots:
            self._add("copy", request, now_ps, step, tokens=slots)

    def handed_over(self, request: Request, now_ps: int, step: int) -> None:
        """A prompt is held for another server."""
        self.changed = True
        self._add("hand_over", request, now_ps, step, tokens=request.computed)

    def moved(self, event: str, request: Request, now_ps: int, step: int) -> None:
        """A request leaves for another server, or arrives from one."""
        self.changed = True
        self._add(event, request, now_ps, step, tokens=request.computed)

    def finished(self, request: Request, now_ps: int, step: int) -> None:
        """A sequence has its last token."""
        self.changed = True
        self._add("finish", request, now_ps, step, tokens=request.final_tokens)

    def rejected(self, row: int, now_ps: int, step: int, reason: str) -> None:
        """A request can never be served."""
        self._add("reject", Request(row, 0, 1), now_ps, step, reason)

    def lost(self, row: int, now_ps: int, step: int, tokens: int, reason: str) -> None:
        """A replica died with this request, which starts over."""
        self.changed = True
        self._add("lost", Request(row, 0, 1), now_ps, step, reason, tokens=tokens)

    def sent(self, row: int, now_ps: int, step: int) -> None:
        """A request is sent here later than it arrived."""
        self._add("send", Request(row, 0, 1), now_ps, step)

    def table(self) -> tuple[dict[str, Int64Column], dict[str, Texts]]:
        """The columns so far in order of time, as numbers and texts; NONE where a number does not apply."""
        self._keep()
        rows = np.array(self._numbers, dtype=np.int64).reshape(-1, len(self._columns))
        order = np.argsort(rows[:, 0], kind="stable")
        numbers = dict(zip(self._columns, np.ascontiguousarray(rows[order].T), strict=True))
        texts = {"event": self._event.texts(), "reason": self._reason.texts()}
        return numbers, {name: column.in_order(order) for name, column in texts.items()}

    def _keep(self) -> None:
        """Move the latest rows into the array at once, where each number takes less memory."""
        self._numbers.frombytes(pack(f"{len(self._latest)}q", *self._latest))
        self._latest.clear()

    def _add(  # noqa: PLR0917 - the columns
        self,
        event: str,
        request: Request,
        now_ps: int,
        step: int,
        reason: str = "",
        tokens: int = NONE,
        cached: int = NONE,
        by: int = NONE,
        need: int = NONE,
        free: int = NONE,
        largest: int = NONE,
    ) -> None:
        self._latest += (now_ps, step, request.index, request.sample, tokens, cached, by, need, free, largest)
        if self._log is not None:
            self._latest.append(self._log.sent_again(request.index))
        if len(self._latest) > AT_ONCE:
            self._keep()
        self._event.append(event)
        self._reason.append(reason)
