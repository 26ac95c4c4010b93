"""What happens to each request, and why: written down on demand, for reports that explain.

    admit      it enters the memory: `tokens` in all, of which the prefix cache had `cached`
    refuse     it heads the queue and is not admitted, for this `reason`, which is written when it changes:
               no room, with the slots that it `need`s, those `free`, and the `largest` free extent;
               watermark; seats; token budget; eviction (nobody enters in such a step); batch (it is not
               over); swapped (they come first); future peak (it, and those that run, would need too much
               at once, or it is not yet its turn); same prefix (another computes what it could share);
               storage (it waits for what is read from there)
    decode     its prompt, or its recomputation, is done and gave a token
    preempt    it is evicted and will be computed again: `tokens` are lost; the request `by` took the room
    set_aside  it gives up its seat, and keeps the memory of its `tokens`
    resume     it has a seat again, and decodes on
    swap_out   it goes to the host pool with `tokens`, for the room that `by` took
    swap_in    it is back
    load       `tokens` of its prompt are found elsewhere: it holds memory, and waits for them
    load_beside  `tokens` are loaded from the host while the step that it enters computes, layer by layer
    load_first  `tokens` are loaded from the host before the step that it enters computes
    loaded     they are there
    ask        a storage below the host is asked for `tokens`
    fetched    the host has `tokens` from there: all that there were, or all until it no longer waited
    fork       one more sequence shares its `tokens`
    copy       `tokens` slots are copied: on a write into a shared block, or to move to a larger extent
    hand_over  its prompt is computed, and its `tokens` are held for another server to read
    finish     the last token of a sequence is there
    reject     it can never be served: `reason`

Decisions bear the time at which their step starts; `decode`, `finish` and the forks that follow a prompt that
at which it ends. A `reject` at an arrival bears its time, and the first step that starts then or later.
Nothing here changes a run: with and without events its results are the same integers.
"""

from array import array
from collections.abc import Sequence
from struct import pack
from typing import NamedTuple

import numpy as np

from kvsim.allocators.base import Allocator
from kvsim.sim.serving.request import Request
from kvsim.sim.workload import Int64Column

NO_ROOM = "no room"
FUTURE_PEAK = "future peak"
SAME_PREFIX = "same prefix"
STORAGE = "storage"
NUMBERS = ("time_ps", "step", "request", "sample", "tokens", "cached", "by", "need", "free", "largest")
AT_ONCE = 4096
"""Numbers that are put into an array together."""
NONE = int(np.iinfo(np.int64).min)
"""In a column: there is no such number."""


class Texts(NamedTuple):
    """A column of texts, few of them different: row i says `texts[codes[i]]`."""

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
        """The rows in another order, the texts in that in which they then first appear."""
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


class Events:
    """Collects while the engine runs; `table` has a row per event.

    Attributes
    ----------
    changed : bool
        Whether the last step changed anything, or anybody finished since.
    """

    def __init__(self) -> None:
        self.changed = True
        self._numbers = array("q")  # rows of NUMBERS
        self._latest: list[int] = []  # those that are not among them yet
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
        """The head of the queue was not admitted; said once, until the head or the reason changes.

        The reason is looked at only when something `happened`, not while sequences just decode on: so
        it is the same whether steps are taken one by one or many at once.
        """
        refusal = (request.index, request.sample, reason)
        if refusal != self._last_refusal and (
            happened or self._last_refusal is None or refusal[:2] != self._last_refusal[:2]
        ):
            self._last_refusal = refusal
            free, largest = allocator.free_slots, allocator.largest_free_extent()
            self._add("refuse", request, now_ps, step, reason, need=need, free=free, largest=largest)

    def decodes(self, request: Request, now_ps: int, step: int) -> None:
        """All of a prompt, or of a recomputation, is computed."""
        self._add("decode", request, now_ps, step, tokens=request.computed)

    def left(self, event: str, request: Request, now_ps: int, step: int, by: Request | None) -> None:
        """A request was preempted, set aside or swapped out, with what it holds now."""
        self._add(event, request, now_ps, step, tokens=request.computed, by=NONE if by is None else by.index)

    def loads(self, request: Request, now_ps: int, step: int, tokens: int) -> None:
        """So much of a prompt begins to be loaded."""
        self._last_refusal = None
        self._add("load", request, now_ps, step, tokens=tokens)

    def loads_beside(self, request: Request, now_ps: int, step: int, tokens: int) -> None:
        """So much of a prompt is loaded while the step that is decided computes."""
        self._add("load_beside", request, now_ps, step, tokens=tokens)

    def loads_first(self, request: Request, now_ps: int, step: int, tokens: int) -> None:
        """So much of a prompt is loaded before the step that is decided computes."""
        self._add("load_first", request, now_ps, step, tokens=tokens)

    def loaded(self, request: Request, now_ps: int, step: int, tokens: int) -> None:
        """It is there."""
        self._add("loaded", request, now_ps, step, tokens=tokens)

    def asks(self, request: Request, now_ps: int, step: int, tokens: int) -> None:
        """A storage is asked for so much of a prompt."""
        self._add("ask", request, now_ps, step, tokens=tokens)

    def fetched(self, request: Request, now_ps: int, step: int, tokens: int) -> None:
        """So much came from there; the next refusal is told anew."""
        self._last_refusal = None
        self._add("fetched", request, now_ps, step, tokens=tokens)

    def returned(self, request: Request, now_ps: int, step: int) -> None:
        """A request came back from the host pool."""
        self._add("swap_in", request, now_ps, step, tokens=request.computed)

    def resumed(self, request: Request, now_ps: int, step: int) -> None:
        """A request that was set aside decodes on."""
        self._last_refusal = None
        self._add("resume", request, now_ps, step, tokens=request.computed)

    def forked(self, child: Request, now_ps: int, step: int) -> None:
        """A sequence shares all of another one of its request."""
        self._add("fork", child, now_ps, step, tokens=child.computed)

    def copied(self, request: Request, now_ps: int, step: int, slots: int) -> None:
        """Slots were copied on behalf of a request; none are not worth a row."""
        if slots:
            self._add("copy", request, now_ps, step, tokens=slots)

    def handed_over(self, request: Request, now_ps: int, step: int) -> None:
        """A prompt is held for another server."""
        self.changed = True
        self._add("hand_over", request, now_ps, step, tokens=request.computed)

    def finished(self, request: Request, now_ps: int, step: int) -> None:
        """A sequence has its last token."""
        self.changed = True
        self._add("finish", request, now_ps, step, tokens=request.final_tokens)

    def rejected(self, row: int, now_ps: int, step: int, reason: str) -> None:
        """A request can never be served."""
        self._add("reject", Request(row, 0, 1), now_ps, step, reason)

    def table(self) -> tuple[dict[str, Int64Column], dict[str, Texts]]:
        """The columns so far in order of time, numbers and texts; NONE where a number does not apply."""
        self._keep()
        rows = np.array(self._numbers, dtype=np.int64).reshape(-1, len(NUMBERS))
        order = np.argsort(rows[:, 0], kind="stable")
        numbers = dict(zip(NUMBERS, np.ascontiguousarray(rows[order].T), strict=True))
        texts = {"event": self._event.texts(), "reason": self._reason.texts()}
        return numbers, {name: column.in_order(order) for name, column in texts.items()}

    def _keep(self) -> None:
        """Put the latest rows to the others, many at once: each number takes less room there."""
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
        if len(self._latest) > AT_ONCE:
            self._keep()
        self._event.append(event)
        self._reason.append(reason)
