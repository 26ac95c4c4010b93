"""A tier below the GPU's memory, as vLLM's OffloadingConnector uses it: what is stored, and when it ends.

    step s    prompts are computed; the chunks that they complete are offered to the tier: a store is planned
    s + 1     it begins: the data that it copies has been computed
    later     it ends: the chunks can be found from the next decision on

Chunks are written through once, also those of a GPU hit. A tier without room for all that is offered takes
none of it, and gets the offer again at the request's next step. A finished request offers once more; only
then does the tier learn in which order its chunks were used. Before the blocks of a preempted request are
reused, its stores must end; so must those of a finished request whose blocks a step is given.

Which requests load, and when, is decided in sim/serving/loading.py. Follows vLLM 0.33.0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvsim.allocators.base import Content
from kvsim.allocators.texts import Texts, pieces
from kvsim.allocators.tiers.base import Tier
from kvsim.allocators.tiers.chunks import placeholders
from kvsim.allocators.tiers.pieces import Piece, overlap
from kvsim.sim.serving.connector import Connector
from kvsim.sim.serving.request import Request, State
from kvsim.sim.serving.server import Server
from kvsim.sim.serving.stack import Stack
from kvsim.sim.serving.tier_jobs import Job, User
from kvsim.sim.serving.totals import TierTotals
from kvsim.sim.serving.transfers import Transfers


@dataclass(frozen=True)
class OffloadRules:
    """How a tier is used."""

    chunk_tokens: int
    """tokens of a chunk, a multiple of the block size"""
    prompt_only: bool = True
    """whether answers are left out"""
    late: bool = False
    """whether ended transfers are known one decision later (asynchronous scheduling)"""
    chunk_bytes: int = 0
    """bytes of a chunk, on all GPUs together"""


class Offload(Connector):
    """Stores in a tier what a server computes.

    Attributes
    ----------
    users : dict of User
        Unfinished requests that have been looked up or computed, by their name (`own`).
    planned : list of Job
        Stores of the last decision; they begin with the next.
    """

    def __init__(
        self,
        server: Server,
        tier: Tier,
        transfers: Transfers,
        rules: OffloadRules,
        texts: Texts | None = None,
    ) -> None:
        super().__init__(server, transfers, rules.late)
        self.tier, self.rules = tier, rules
        self.blocks_per_chunk = rules.chunk_tokens // self.size
        self.users: dict[int, User] = {}
        self.planned: list[Job] = []
        self._texts = texts or Texts(rules.chunk_tokens)  # of all servers that share a tier of its stack
        self._refused: dict[int, User] = {}  # by sequence: those that offer again in their next step
        self._left: list[
            tuple[tuple[int, int], User, list[int], int]
        ] = []  # those that finished since the last decision
        self._lengths: dict[int, int] | None = None  # of block tables, if it matters which blocks are new
        self._asks_by_cached = False  # whether any look-up depends on what the GPU keeps
        self.stack: Stack | None = None
        self._jobs = 0
        self._unowned = 0  # stores that have not ended, of requests that have finished
        self.totals = TierTotals(tier.capacity * rules.chunk_bytes)
        server.totals.tier, server.memory.below.find = self.totals, self.below
        server.memory.below.preempts = self._preempted

    def new_job(
        self, loads: bool, user: User, copied: list[Piece], chunks: Sequence[int], blocks: Sequence[int]
    ) -> Job:
        """Make the next job."""
        self._jobs += 1
        moved = len(chunks) * self.rules.chunk_bytes
        if loads:
            self.totals.loaded_bytes += moved
        else:
            self.totals.stored_bytes += moved
        return Job(self._jobs - 1, loads, user, copied, chunks, blocks)

    def user(self, request: Request) -> User:
        """What is known of a request."""
        found = self.users.get(request.own)
        if found is None:
            found = self.users[request.own] = User(request, request.own)
            found.ranges = self._texts.keys_once(full_text(request))
            self.tier.know(self._texts.count)
            self.tier.introduce(found.number)
            if self.stack is not None:
                self.stack.meet(found, self.server.now_ps)
        return found

    def below(self, request: Request, here: int) -> int:
        """Tokens of a prompt that the tier has after the first `here`; also for requests elsewhere."""
        size = self.rules.chunk_tokens
        start = here // size
        ranges = self._texts.keys(full_text(request))
        self.tier.know(self._texts.count)
        found, _ = self.tier.find(pieces(ranges, start, (request.prompt_tokens - 1) // size))
        return max(0, (start + found) * size - here)

    # -- loads ----------------------------------------------------------------------------------

    def look_up(self, user: User, here: int) -> int | None:
        """Tokens after the first `here` that the tier has; None: ask again later."""
        request, size = user.request, self.rules.chunk_tokens
        self._asks_by_cached = self._asks_by_cached or here > 0
        user.offered = 0
        user.loaded = user.promoted = False
        if user.stores:
            return None
        known = request.known_tokens
        if known - here < size:
            return 0
        start = here // size
        asked = pieces(user.ranges, start, known // size)
        if self.stack is None:
            hits, written = self.tier.find(asked)
        else:
            hits, written = self.stack.promote(user, asked, self.server.now_ps)
        tokens = (start + hits) * size - here
        if tokens < size:
            return 0
        if written:
            if self.stack is not None:
                self.stack.wait_for(user, asked, self.server.now_ps)
            return None
        if self.server.allocator.caches:
            wanted = pieces(user.ranges, start, start + hits)
            for _, _, job in self.transfers.under_way:  # loads for another waiting request
                if job.loads and not job.hurried and overlap(job.pieces, wanted):
                    return None
        return tokens

    def begin(self, user: User, request: Request, here: int, below: int, at_once: bool = False) -> None:
        """Load these chunks."""
        size, each = self.size, self.blocks_per_chunk
        first, end = -(-here // size), -(-(here + below) // size)
        start, user.offered = first // each, -(-(here + below) // self.rules.chunk_tokens)
        wanted = pieces(user.ranges, start, user.offered)
        blocks = self.allocator.table_so_far(request.seq)[first:end]
        self.totals.hit(here, below)
        user.began_ps = self.server.now_ps
        job = self.new_job(True, user, wanted, self.tier.load(user.number, wanted), blocks)
        if at_once:
            self.hurry([job])
            if user.up_ps:
                self.runs(user)
        else:
            self.transfers.begin(job, self.server.now_ps)

    def runs(self, user: User) -> None:
        """Count how long it waited."""
        self.totals.waited_requests += 1
        self.totals.waited_ps += user.up_ps + self.server.now_ps - user.began_ps
        user.up_ps = 0

    # -- a decision ---------------------------------------------------------------------------

    def begin_step(self) -> None:
        """A step is about to be decided: planned stores begin, ended transfers are known."""
        now_ps = self.server.now_ps
        self.totals.count(self.tier.held * self.rules.chunk_bytes, now_ps)
        for job in self.planned:
            if not job.begun:
                self.transfers.begin(job, now_ps)
        self.planned.clear()
        self._asks_by_cached = False
        self.settle(self.server.wakes.before_ps if self.rules.late else now_ps)
        if self.stack is not None:
            self.stack.begin_step()
        self._lengths = None
        if self._unowned or (
            self._left and any(self._within(user, tokens) > user.offered for _, user, _, tokens in self._left)
        ):
            living = (*self.server.running, *self.server.batch.loading)
            self._lengths = {seq: self._blocks(seq) for seq in living}

    def end_step(self) -> None:
        """A step is decided: offer what it completes, and wait for stores whose blocks were taken."""
        server, running = self.server, self.server.running
        if self.stack is not None and self._asks_by_cached:
            # what the GPU forgets comes up to the host for a waiting one
            server.step.of_validity().asks_by_cached = True
        users, holds_for = [self.user(request) for request in server.step.chunks], 1 << 40
        if self._refused or not self.rules.prompt_only:
            users, holds_for = self._with_decoding(users)
        if len(users) > 1:
            users.sort(key=seq_of)
        before, self._refused = self._refused, {}
        if before:  # who is not in this step offers again in its next
            here = {user.request.seq for user in users}
            self._refused = {seq: user for seq, user in before.items() if seq in running and seq not in here}
        for user in users:
            request, seq = user.request, user.request.seq
            if seq in running and not self._offer(user, self._tokens(request), None):
                self._refused[seq] = user
                self.totals.refused_stores += seq not in before
        if self._left:
            self._offer_left()
        self._flush()
        if self._differs_next():
            holds_for = 1
        if holds_for < 1 << 40:
            server.hold_for(holds_for)

    def _with_decoding(self, users: list[User]) -> tuple[list[User], int]:
        """These, plus decoding users that offer (refused before, or answers are stored); and for how long."""
        running, size, holds_for = self.server.running, self.rules.chunk_tokens, 1 << 40
        scheduled = {user.request.seq: user for user in users}
        for seq, user in self._refused.items():
            if seq in running and user.request.state == State.DECODE:
                scheduled[seq] = user
        if not self.rules.prompt_only:
            for seq, request in running.items():
                if request.state == State.DECODE:
                    scheduled[seq] = self.user(request)
                    holds_for = min(holds_for, size - self._tokens(request) % size)
        return list(scheduled.values()), holds_for

    def _offer_left(self) -> None:
        """Offer what requests finished since the last decision had; then they have left."""
        left, self._left = self._left, []
        if len(left) > 1:
            left.sort(key=lambda one: one[0])
        for _, user, table, tokens in left:
            self.totals.refused_stores += not self._offer(user, tokens, table)
        for _, user, _, _ in left:
            self.tier.leave(user.number)

    def _differs_next(self) -> bool:
        """Whether the next step begins a store, checks whose blocks it takes, offers again, or finds more."""
        offers_again = bool(self._refused) and self.tier.counts_offers
        finds_more = self.stack is not None and self.stack.promotes
        return bool(self.planned) or self._unowned > 0 or offers_again or finds_more

    def _tokens(self, request: Request) -> int:
        """Tokens of a request after this step, as far as they are known now."""
        if request.state != State.DECODE:
            return request.computed
        tokens = self.server.progress.tokens(request)
        return tokens - 1 if self.rules.late and request.seq not in self.rested else tokens

    def _within(self, user: User, tokens: int) -> int:
        """Chunks within `tokens` tokens that may be stored."""
        if self.rules.prompt_only and tokens > user.request.prompt_tokens:
            tokens = user.request.prompt_tokens
        return tokens // self.rules.chunk_tokens

    def _offer(self, user: User, tokens: int, table: Sequence[int] | None) -> bool:
        """Offer the chunks within `tokens` tokens; False: refused."""
        request, tier, count = user.request, self.tier, self.blocks_per_chunk
        chunks = self._within(user, tokens)
        if chunks <= user.offered:
            return True
        if table is None:
            table = self.allocator.table_so_far(request.seq)
        chunks = min(chunks, len(table) // count)
        offered = pieces(user.ranges, user.offered, chunks)
        if not offered:
            return True
        before = tier.held
        stored = tier.store(user.number, offered)
        if stored is None:
            return False
        if stored.evicted:
            self.totals.evicted_bytes += (before + len(stored.chunks) - tier.held) * self.rules.chunk_bytes
        user.offered = chunks
        if stored.pieces:
            running = not user.finished
            blocks = stored.chunks  # if there is one for each: only how many they are matters
            if not running:
                blocks = self._blocks_of(stored.pieces, table)
            elif count > 1:
                blocks = placeholders(len(stored.chunks) * count)
            job = self.new_job(False, user, stored.pieces, stored.chunks, blocks)
            user.stores.add(job)
            self.planned.append(job)
            self._unowned += user.finished
        return True

    # -- leaving ------------------------------------------------------------------------------

    def _blocks_of(self, stored: list[Piece], table: Sequence[int]) -> list[int]:
        """The blocks that chunks are copied from."""
        count = self.blocks_per_chunk
        return [block for at, _, length in stored for block in table[at * count : (at + length) * count]]

    def _keep_blocks(self, user: User, table: Sequence[int]) -> None:
        """The table goes: stores that have not ended keep what they copy, as that may be taken."""
        for job in user.stores:
            if not job.hurried:  # by an earlier preemption
                job.blocks = self._blocks_of(job.pieces, table)

    def _preempted(self, request: Request) -> None:
        user = self.users.get(request.own)
        if user is not None and user.stores:
            self._keep_blocks(user, self.allocator.table_so_far(request.seq))

    def finishes(self, request: Request) -> None:
        """A request has finished and still has its memory: it offers the rest in the next step."""
        user = self.users.pop(request.own, None)
        if user is None:
            return
        user.finished = True
        self.server.wakes.works = True
        self._unowned += len(user.stores)
        self._refused.pop(request.seq, None)
        tokens = max(request.prompt_tokens, request.prompt_tokens + request.generated - 1)
        offers = self._within(user, tokens) > user.offered
        if user.stores:
            self._keep_blocks(user, self.allocator.table_so_far(request.seq))
        table = [*self.allocator.table_so_far(request.seq)] if offers else []
        self._left.append(((0, request.seq), user, table, tokens))

    def aborts(self, request: Request, tokens: int, table: list[int]) -> None:
        """A request that computed `tokens` tokens is aborted: it offers them in the next step."""
        user = self.users.pop(request.own, None) or self.user(request)
        self.users.pop(request.own, None)
        user.finished = True
        self.server.wakes.works = True
        self._unowned += len(user.stores)
        if table:
            self._keep_blocks(user, table)
            self._refused.pop(request.seq, None)
        self._left.append(((1, len(self._left)), user, table, tokens))

    def _flush(self) -> None:
        """Wait for the stores of preempted requests, and of finished ones whose blocks were taken."""
        hurried: list[Job] = []
        if self.server.step.preemptions:
            for _, _, job in self.transfers.under_way:
                if job.owner.request.state == State.WAITING and not (job.loads or job.hurried):
                    hurried.append(job)
        if self._lengths is not None:
            taken = self._taken(self._lengths)
            for job in self.transfers.stores() + self.planned:
                if job.owner.finished and not taken.isdisjoint(job.blocks):
                    hurried.append(job)
        if hurried:
            self.hurry(hurried)

    def hurry(self, jobs: Iterable[Job]) -> None:
        """Make the step wait for these stores."""
        step, now_ps = self.server.step, self.server.now_ps
        hurried = list(jobs)
        for job in hurried:
            job.hurried = True
            if not job.begun:
                self.transfers.begin(job, now_ps)
        step.changed = True
        moved = step.of_moves()
        delay_ps = max(moved.delay_ps, self.transfers.wait_for(hurried, now_ps))
        self.totals.steps_waited_ps += delay_ps - moved.delay_ps
        moved.delay_ps = delay_ps

    def _blocks(self, seq: int) -> int:
        return self.server.allocator.capacity(seq) // self.size

    def _taken(self, lengths: dict[int, int]) -> set[int]:
        """Blocks that this step gave to any request, including those that were hit."""
        taken: set[int] = set()
        for seq in (*self.server.running, *self.server.batch.loading):
            before = lengths.get(seq, 0)
            if self._blocks(seq) > before:
                taken.update(self.allocator.block_table(seq)[before:])
        return taken

    # -- the end of transfers -----------------------------------------------------------------

    def settle(self, by_ps: int) -> bool:
        """Transfers that ended by then are known from now on; returns whether there were any."""
        under_way = self.transfers.under_way
        if not under_way or under_way[0][0] > by_ps:
            return self.stack is not None and self.stack.settle(by_ps)
        for job in self.transfers.ended(by_ps):
            if job.loads:
                self.tier.loaded(job.pieces)
                self.loaded(job.owner, job.ends_ps)
            else:
                self.tier.stored(job.pieces)
                job.owner.stores.discard(job)
                self._unowned -= job.owner.finished
                if self.stack is not None:
                    self.stack.cascade(job)
        if self.stack is not None:
            self.stack.settle(by_ps)
        return True

    def wake(self, again: bool) -> None:
        """Say when the next decision may differ; `again`: it may immediately."""
        server = self.server
        totals, transfers = self.totals, self.transfers
        totals.held_bytes = self.tier.held * self.rules.chunk_bytes
        totals.peak_bytes = max(totals.peak_bytes, totals.held_bytes)
        transfers.tell(totals)
        if again:
            server.hold_until(server.now_ps)
        elif transfers.under_way or self.stack:
            waits = len(server.waiting) > 0 or bool(self._refused) or bool(server.batch.loading)
            ends = transfers.next_ps(loads_only=not (waits or self._hands_on()))
            if self.stack is not None and waits:
                ends = earliest(ends, self.stack.next_ps(others=len(server.running) > 0))
            if ends is not None:
                server.hold_until(max(ends, server.now_ps))
        self._work_alone(again)

    def _hands_on(self) -> bool:
        """Whether other servers find what it stores: then it is handed on in time, even without requests."""
        return self.stack is not None and self.stack.is_shared

    def _work_alone(self, again: bool) -> None:
        """Keep working until all stores have begun; until they have ended, if others find them."""
        server, under_way = self.server, self._hands_on() and bool(self.transfers.under_way)
        anybody = server.running or server.batch.loading or len(server.waiting) > 0
        if not anybody and (self.planned or not under_way):  # an empty decision is spent
            server.hold_until(server.now_ps)
        server.wakes.works = again or under_way or bool(self.planned or self._left)


def seq_of(user: User) -> int:
    """The sequence id of its request."""
    return user.request.seq


def full_text(request: Request) -> Content:
    """A request's prompt and answer."""
    return whole_text(request, request.prompt_tokens + request.output_tokens)


def whole_text(request: Request, tokens: int) -> Content:
    """A request's text: the part that others may share, and the rest, which has its own name."""
    shared = sum([length for _, _, length in request.content])
    if shared >= tokens:
        return request.content
    return (*request.content, (-1 - request.own, shared, tokens - shared))


def earliest(one: int | None, other: int | None) -> int | None:
    """The earlier of two times; None: never."""
    return one if other is None else other if one is None else min(one, other)
