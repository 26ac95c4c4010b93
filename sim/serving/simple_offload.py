"""A second pool of blocks in host memory, as vLLM's SimpleCPUOffloadConnector keeps it: eager or lazy.

    eager    blocks are stored one step after they were computed, also of answers; the rest at the finish
    lazy     a cursor walks over the GPU's free blocks, and stores those that will be taken soon

All loads that a step begins are one job, and so are all stores. The blocks that a job copies, on both sides,
are held until it ends; a stored block that was free is then the last of the GPU's queue. The blocks that a
look-up finds are held until its request is admitted, or asks again. A preemption makes the step wait for all
earlier jobs.

Follows vLLM 0.33.0.
"""

from collections.abc import Sequence

from kvsim.allocators.prefix_pool import PrefixPool
from kvsim.allocators.spans import Span
from kvsim.allocators.texts import Keys, pieces
from kvsim.allocators.tiers.second_pool import Row, SecondPool, rows
from kvsim.sim.serving.connector import Connector
from kvsim.sim.serving.offload import whole_text
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.tier_jobs import Job, User
from kvsim.sim.serving.totals import TierTotals
from kvsim.sim.serving.transfers import Transfers

FOREVER = 1 << 40
NOWHERE = -1, -1
IN_CIRCLES = (
    "for room, while the lazy pool evicts blocks and stores them again; a larger one (--kv-offloading-size), "
    "or an eager one, may end it"
)


Copied = tuple[int, list[int], list[int]]
"""A row that is copied: the key of its first block, the GPU's blocks, and those in host memory."""


class Parts(Job):
    """A job for several requests.

    Attributes
    ----------
    users : list of User
        The users that it loads for.
    copied : list of Copied
        What it copies, in rows.
    backward : bool
        Whether the last of each row comes first.
    """

    __slots__ = ("backward", "copied", "event", "users")

    def __init__(self, number: int, event: int, loads: bool, users: list[User]) -> None:
        super().__init__(number, loads, users[0] if users else NOBODY, [], [], [])
        self.event, self.users, self.backward = event, users, False
        self.copied: list[Copied] = []
        self.chunks: list[int] = []
        self.blocks: list[int] = []

    def add(self, copied: "list[Copied]") -> None:
        """Copy these as well."""
        self.copied += copied
        for _, here, there in copied:
            self.blocks += reversed(here) if self.backward else here
            self.chunks += reversed(there) if self.backward else there


NOBODY = User(Request(-1, 1, 1), -1)


class Cursor:
    """Walks over the GPU's free blocks ahead of those that are taken, and finds what a lazy pool stores.

    Parameters
    ----------
    pool, second : PrefixPool, SecondPool
        The GPU's blocks, and those in host memory.
    blocks : int
        Free blocks of the GPU that a step examines.

    Attributes
    ----------
    at : (int, int)
        The last free block that was looked at, and its key, or -1 if it has none.
    alone : int
        Blocks that it has found since there were requests.
    """

    def __init__(self, pool: PrefixPool, second: SecondPool, blocks: int) -> None:
        self.pool, self.second, self.blocks = pool, second, blocks
        self.at = NOWHERE
        self.alone = 0

    def find(self) -> Span | None:
        """The span of its block; None: that is no longer free, and it starts again from the first."""
        span = self.pool.span_of(*self.at) if self.at[0] >= 0 else None
        if span is None:
            self.at = NOWHERE
        return span

    def advance(self, span: Span | None, room: int) -> list[Row]:
        """Examine the next blocks; returns those that the second pool lacks, up to `room`.

        They come in the order in which rows were reached; each row was reached from its last block on.
        """
        found: list[Row] = []
        ahead, left = self.blocks, room
        for row, first in self.pool.rows_behind(self.at[0], span):
            at = max(0, len(row) - ahead)
            count = len(row) - at
            ahead -= count
            key = self.pool.key_of(row[at]) if first is None else first + at
            self.at = row[at], key
            missing = self.second.misses(key, count) if key >= 0 else 0
            if missing == count < left:  # usually
                found.append((key, row[at:]))
            elif missing:
                unknown = self.second.unknown(key, count)[-left:]
                if missing >= left:
                    ahead = 0
                    self.at = row[at + unknown[0] - key], unknown[0]
                found += reversed(rows((each, row[at + each - key]) for each in unknown))
            left -= min(missing, left)
            if not ahead:
                break
        self.alone += room - left
        return found


class SimpleOffload(Connector):
    """Stores in a second pool what a server computes.

    Parameters
    ----------
    second : SecondPool
        The blocks in host memory.
    lazy_blocks : int
        Free blocks of the GPU that the cursor examines in a step; 0: eager.
    block_bytes : int
        Bytes per block, on all GPUs together.

    Attributes
    ----------
    pins : dict of list of Row
        By user's number: host blocks that its look-up found, and that it has not begun to load.
    storing : set of int
        Blocks of the GPU that are being stored.
    left : list of Copied
        What finished requests still store.
    """

    def __init__(  # noqa: PLR0917 - what is copied, where to, and when
        self,
        server: Server,
        second: SecondPool,
        transfers: Transfers,
        lazy_blocks: int,
        late: bool,
        block_bytes: int = 0,
    ) -> None:
        super().__init__(server, transfers, late)
        assert self.allocator.prefixes is not None
        self.second, self.block_bytes = second, block_bytes
        self.prefixes = self.allocator.prefixes
        self.cursor = Cursor(self.prefixes.pool, second, lazy_blocks) if lazy_blocks else None
        if lazy_blocks:
            server.wakes.in_circles = IN_CIRCLES
        self.users: dict[int, User] = {}
        self.pins: dict[int, list[Row]] = {}
        self.storing: set[int] = set()
        self.left: list[Copied] = []
        self._loads: list[tuple[User, list[Copied]]] = []  # of this decision
        self._before: dict[int, int] = {}  # by sequence that ran before this decision: its computed tokens
        self._started: dict[int, int] = {}  # by number of users that asked: what they begin with
        self._anybody_left = False  # since the last decision
        self._jobs = {True: 0, False: 0}  # so far: loads, stores
        self.totals = TierTotals(second.blocks * block_bytes)
        server.totals.tier, server.memory.below.find = self.totals, self.below

    def user(self, request: Request) -> User:
        """What is known of a request; all of its text can be found from now on."""
        found = self.users.get(request.own)
        if found is None:
            request.content = whole_text(request, request.prompt_tokens + request.output_tokens)
            found = self.users[request.own] = User(request, request.own)
            found.ranges = self.ranges(request)
        return found

    def ranges(self, request: Request) -> list[Keys]:
        """The keys of the blocks of a request's text."""
        text = whole_text(request, request.prompt_tokens + request.output_tokens)
        ranges = list(self.prefixes.keys_of(text, request.own)[0])
        self.second.know(max([first + count for first, count in ranges], default=0))
        return ranges

    def below(self, request: Request, here: int) -> int:
        """Tokens of a prompt in the second pool after the first `here`; also for requests elsewhere."""
        size = self.size
        asked = pieces(self.ranges(request), here // size, (request.prompt_tokens - 1) // size)
        return blocks_in(self.second.find(asked)) * size

    # -- loads ----------------------------------------------------------------------------------

    def look_up(self, user: User, here: int) -> int | None:
        """Tokens after the first `here` in the second pool; they are held for it from now on."""
        user.loaded = user.promoted = False
        self._started[user.number] = here
        start, stop = here // self.size, (user.request.known_tokens - 1) // self.size
        found = self.second.find(pieces(user.ranges, start, stop))
        if found != self.pins.get(user.number, []):  # releasing and holding the same blocks changes nothing
            self._unpin(user)
            self.second.hold(found)
            if found:
                self.pins[user.number] = found
        return blocks_in(found) * self.size

    def _unpin(self, user: User) -> None:
        self.second.leave(self.pins.pop(user.number, []))

    def begin(self, user: User, request: Request, here: int, below: int, at_once: bool = False) -> None:
        """Load what is held for it, together with the other loads of this step."""
        start, table = here // self.size, self.allocator.table_so_far(request.seq)
        copied: list[Copied] = []
        at = start
        for key, there in self.pins.pop(user.number):
            copied.append((key, list(table[at : at + len(there)]), there))
            at += len(there)
        self.allocator.pin([(key, blocks) for key, blocks, _ in copied])
        self._loads.append((user, copied))
        user.offered, user.began_ps = start, self.server.now_ps
        self.totals.hit(here, below)

    def loads_for(self, request: Request) -> bool:
        """Whether a load for a request is under way."""
        return any(
            user.request is request
            for _, _, job in self.transfers.under_way
            if isinstance(job, Parts)
            for user in job.users
        )

    def runs(self, user: User) -> None:
        """Count how long it waited."""
        self._started[user.number] = user.request.computed
        self.totals.waited_requests += 1
        self.totals.waited_ps += self.server.now_ps - user.began_ps

    # -- a decision ---------------------------------------------------------------------------

    def begin_step(self) -> None:
        """A step is about to be decided: ended transfers are known."""
        server, now_ps = self.server, self.server.now_ps
        self._count()
        self.settle(server.wakes.before_ps if self.late else now_ps)
        self._before = {seq: request.computed for seq, request in server.running.items()}

    def _count(self) -> None:
        """Count what was held until now."""
        self.totals.count(self.second.held * self.block_bytes, self.server.now_ps)

    def end_step(self) -> None:
        """A step is decided: its loads and stores begin; preemptions wait for all earlier jobs."""
        server, step = self.server, self.server.step
        if step.preemptions:
            self._flush()
        stores: list[Copied] = []
        holds_for = self._eager(stores) if self.cursor is None else self._lazy(self.cursor, stores)
        if self._loads:
            job = self._job(True, [user for user, _ in self._loads])
            for _, copied in self._loads:
                job.add(copied)
            self._loads.clear()
            self._begin(job)
        stores += self.left
        self.left.clear()
        if stores:
            job = self._job(False, [])
            job.add(stores)
            self._begin(job)
        if holds_for < FOREVER:
            server.hold_for(holds_for)

    def rest(self) -> None:
        """No request is left, and no transfer is under way."""

    def _job(self, loads: bool, users: list[User]) -> Parts:
        job = Parts(sum(self._jobs.values()), self._jobs[loads], loads, users)
        job.backward = not loads and self.cursor is not None
        self._jobs[loads] += 1
        return job

    def _begin(self, job: Parts) -> None:
        moved = len(job.blocks) * self.block_bytes
        if job.loads:
            self.totals.loaded_bytes += moved
        else:
            self.totals.stored_bytes += moved
        self.transfers.begin(job, self.server.now_ps)

    def _flush(self) -> None:
        step = self.server.step
        jobs = [job for _, _, job in self.transfers.under_way]
        moved = step.of_moves()
        delay_ps = max(moved.delay_ps, self.transfers.wait_for(jobs, self.server.now_ps))
        self.totals.steps_waited_ps += delay_ps - moved.delay_ps
        moved.delay_ps = delay_ps

    # -- what is stored -------------------------------------------------------------------------

    def _eager(self, stores: list[Copied]) -> int:
        """Store what was computed before this step; returns the steps for which nothing follows."""
        server, before, holds_for = self.server, self._before, FOREVER
        chunks = {request.seq for request in server.step.chunks}
        first: list[Request] = []
        resumed: list[Request] = []
        running: list[Request] = []
        for seq, request in server.running.items():
            if seq in chunks or request.state == State.DECODE:
                (running if seq in before else resumed if request.preemptions else first).append(request)
        for request in first + resumed + running:
            user, seq = self.user(request), request.seq
            if seq not in before:
                user.offered = 0
            if request.state == State.DECODE:
                tokens = self._decoded(request)
                holds_for = min(holds_for, self.size - tokens % self.size)
            else:
                tokens = before[seq] if seq in before else self._started[request.own]
                holds_for = 1
            stop = tokens // self.size
            if stop > user.offered and not self._select(user, stop, self.allocator.table_so_far(seq), stores):
                holds_for = 1
        return holds_for

    def _decoded(self, request: Request) -> int:
        """Computed tokens of a decoding request before this step, as far as they are known."""
        tokens = self.server.progress.stored(request)
        return tokens - 1 if self.late and request.seq not in self.rested else tokens

    def _select(self, user: User, stop: int, table: Sequence[int], stores: list[Copied]) -> bool:
        """Store the next blocks of a request before `stop`; False: there is no room for all of them."""
        second, storing, room = self.second, self.storing, self.second.free
        if not room:
            return user.offered >= stop
        chosen: list[Row] = []
        reached = stop
        for at, key, count in pieces(user.ranges, user.offered, stop):
            blocks, missing = list(table[at : at + count]), second.misses(key, count)
            if missing and (missing < count or count > room or not storing.isdisjoint(blocks)):
                new = [
                    (each, block)
                    for each, block in enumerate(blocks, key)
                    if block not in storing and not second.knows(each)
                ]
                chosen += rows(new[:room])
                if len(new) > room:
                    reached = at + new[room][0] - key
                    break
                room -= len(new)
            elif missing:  # usually
                chosen.append((key, blocks))
                room -= count
        user.offered = max(user.offered, reached)
        self._take(chosen, stores)
        return reached >= stop

    def _take(self, chosen: list[Row], stores: list[Copied]) -> None:
        """Take host blocks for these, which stay in place until they are copied."""
        if not chosen:
            return
        there, evicted = self.second.take(blocks_in(chosen))
        self.totals.evicted_bytes += evicted * self.block_bytes
        self.allocator.pin(chosen)
        at = 0
        for key, blocks in chosen:
            self.storing.update(blocks)
            each = there[at : at + len(blocks)]
            if self.cursor is not None:
                each.reverse()
            stores.append((key, blocks, each))
            at += len(blocks)

    def _lazy(self, cursor: Cursor, stores: list[Copied]) -> int:
        """Store what the cursor reaches; returns the steps for which nothing follows."""
        span, pool = cursor.find(), cursor.pool
        left, self._anybody_left = self._anybody_left, False
        anybody, room = self._anybody(), self.second.free
        if not (left or anybody or self.transfers.under_way):
            return FOREVER  # the last store ended, and the engine has nothing to do
        if not room:
            return 1
        if anybody:
            cursor.alone = 0
        elif cursor.alone > self.second.blocks + pool.free:
            return FOREVER  # the engine would copy round and round, for no request
        found = cursor.advance(span, room)
        self._take(found, stores)
        at_end = not pool.free or (cursor.at[0] == pool.last_queued and not found)
        return FOREVER if at_end else 1

    # -- leaving ------------------------------------------------------------------------------

    def finishes(self, request: Request) -> None:
        """A request has finished and still has its memory: what it has not stored joins the next job."""
        user = self.users.pop(request.own, None)
        if user is None:
            return
        tokens = request.prompt_tokens + request.generated - 1
        self._leave(user, tokens, self.allocator.table_so_far(request.seq))

    def aborts(self, request: Request, tokens: int, table: list[int]) -> None:
        """A request that computed `tokens` tokens is aborted."""
        user = self.user(request)
        del self.users[request.own]
        if request.state == State.LOADING and not user.promoted:
            tokens = user.offered * self.size
            user.offered = 0
        elif self.late and request.state == State.DECODE:
            tokens -= 1
        self._leave(user, tokens, table)

    def _leave(self, user: User, tokens: int, table: Sequence[int]) -> None:
        self._count()
        self._unpin(user)
        self._started.pop(user.number, None)
        self.server.wakes.works = True
        user.finished = self._anybody_left = True
        if self.cursor is None:
            self._select(user, min(tokens // self.size, len(table)), table, self.left)

    # -- the end of transfers -----------------------------------------------------------------

    def settle(self, by_ps: int) -> bool:
        """Transfers that ended by then are known from now on; returns whether there were any."""
        ended = self.transfers.ended(by_ps)
        for job in sorted(ended, key=lambda job: (not job.loads, job.number)):
            assert isinstance(job, Parts)
            for user in job.users:
                self.loaded(user, job.ends_ps)
            if not job.loads:
                for key, _, there in job.copied:
                    self.second.enter(key, there)
                self.storing.difference_update(job.blocks)
            self.second.leave([(key, there) for key, _, there in job.copied], job.backward)
            self.allocator.unpin([(key, here) for key, here, _ in job.copied], job.backward)
        return bool(ended)

    def wake(self, again: bool) -> None:
        """Say when the next decision may differ; `again`: it may immediately."""
        server, totals, transfers = self.server, self.totals, self.transfers
        totals.held_bytes = self.second.held * self.block_bytes
        totals.peak_bytes = max(totals.peak_bytes, totals.held_bytes)
        transfers.tell(totals)
        ends = transfers.next_ps(loads_only=False)
        if again or (ends is None and not self._anybody()):  # an empty decision is spent
            server.hold_until(server.now_ps)
        elif ends is not None:
            server.hold_until(max(ends, server.now_ps))
        server.wakes.works = again or ends is not None or bool(self.left)

    def _anybody(self) -> bool:
        server = self.server
        return bool(server.running or server.batch.loading) or len(server.waiting) > 0


def blocks_in(found: list[Row]) -> int:
    """Number of blocks in rows."""
    return sum([len(blocks) for _, blocks in found])
