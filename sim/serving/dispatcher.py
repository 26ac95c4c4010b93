"""Sends each request to a replica: what the router sees of the replicas, and where sessions went before."""

from collections.abc import Callable, Sequence
from operator import truediv

import numpy as np
import numpy.typing as npt

from kvsim.sim.cost.step_cost import StepShape
from kvsim.sim.errors import KvsimError
from kvsim.sim.record.request_log import RequestLog
from kvsim.sim.routers.base import Router, Seen
from kvsim.sim.serving.intake import NOT_NOW, NOWHERE
from kvsim.sim.serving.replica import Replica
from kvsim.sim.serving.request import Request, State
from kvsim.sim.workload import PS_PER_S


class View:
    """What a router or a scaling policy sees of a replica (see `Seen`)."""

    def __init__(self, replica: Replica, place: int, pool: str, role: str) -> None:
        self.place, self.pool, self.role = place, pool, role
        self.show(replica)

    def show(self, replica: Replica) -> None:
        """Show this replica from now on."""
        self._replica, self._server = replica, replica.server
        # on a prefill server these are computed and wait to be read
        self._loading = {} if self.role == "prefill" else replica.server.batch.loading

    @property
    def waiting(self) -> int:
        """Requests in its queue, those that will join it, and those whose KV is on its way."""
        return len(self._server.waiting) + len(self._replica.input_queue.requests) + len(self._loading)

    @property
    def running(self) -> int:
        """Sequences that it serves, including those in the host pool."""
        return len(self._server.running) + self._server.swapped

    @property
    def requests(self) -> int:
        """Both together, without two calls: a router may ask all replicas for every request."""
        server = self._server
        return self.waiting + len(server.running) + server.swapped

    @property
    def used_share(self) -> float:
        """Share of its KV memory that is allocated in the current step."""
        self._replica.catch_up()
        allocator = self._server.allocator
        return allocator.used_slots / allocator.capacity_slots

    @property
    def used_tokens(self) -> int:
        """Tokens for which KV memory is allocated."""
        self._replica.catch_up()
        allocator = self._server.allocator
        return allocator.used_slots // allocator.slots_per_token

    @property
    def waiting_tokens(self) -> int:
        """Prompt tokens in its queue that are not computed yet."""
        queued = sum([request.known_tokens - request.computed for request in self._server.waiting])
        return queued + sum([request.known_tokens for request in self._replica.input_queue.requests])

    @property
    def loading_tokens(self) -> int:
        """Tokens of requests whose keys and values are on their way to it."""
        return sum([request.known_tokens for request in self._loading.values()])

    @property
    def head_tokens(self) -> int:
        """Tokens that the head of its queue needs; 0: the queue is empty."""
        waiting = self._server.waiting or self._replica.input_queue.requests
        return waiting[0].known_tokens if waiting else 0

    @property
    def prefill_tokens(self) -> int:
        """Prompt tokens that it must still compute; a cache may have some of them."""
        self._replica.catch_up()
        running = self._server.running.values()
        left = [each.known_tokens - each.computed for each in running if each.state == State.PREFILL]
        return sum(left) + self.waiting_tokens

    @property
    def block_size(self) -> int:
        """Tokens per block of its KV memory."""
        return self._replica.scheduler.config.block_size

    @property
    def decode_tokens(self) -> int:
        """Total tokens of its decoding sequences."""
        self._replica.catch_up()
        return self._server.progress.all_stored()

    @property
    def capacity_tokens(self) -> int:
        """Tokens that its KV memory can hold."""
        allocator = self._server.allocator
        return allocator.capacity_slots // allocator.slots_per_token

    @property
    def max_num_batched_tokens(self) -> int:
        """Most tokens in one of its steps."""
        return self._replica.scheduler.config.max_num_batched_tokens

    @property
    def max_num_seqs(self) -> int:
        """Most sequences in one of its steps."""
        return self._replica.scheduler.config.max_num_seqs

    def prefill_s(self, tokens: int) -> float:
        """Seconds to compute a prompt of `tokens` tokens alone."""
        return self.step_s(1, tokens, 0, 0)

    def step_s(self, prompts: int, prompt_tokens: int, sequences: int, context_tokens: int) -> float:
        """Seconds of a step with equal prompts, `prompt_tokens` in all, beside decoding sequences."""
        pairs = prompt_tokens * (prompt_tokens // max(prompts, 1) + 1) // 2
        shape = StepShape(prompt_tokens, pairs, prompts, sequences, context_tokens)
        duration_ps: int = self._replica.pricing.cost.step_ps(shape)
        found: float = truediv(duration_ps, PS_PER_S)
        return found

    def cached_tokens(self, request: Request) -> int:
        """Prompt tokens whose keys and values it has; 0 without a prefix cache."""
        if not self._server.allocator.caches:
            return 0
        self._replica.catch_up()
        return self._server.cached_tokens(request)


class Dispatcher:
    """Asks the router, and remembers where sessions went.

    Parameters
    ----------
    pools : sequence of (str, str)
        The name and the role of each replica's pool.
    sessions : array of shape (n,), or None
        The session of each request; requests of one session go to one replica. None: sessions do not stick.
    role : str, optional
        Only replicas of this role are chosen.
    """

    def __init__(  # noqa: PLR0917 - what it must know
        self,
        router: Router,
        replicas: Sequence[Replica],
        pools: Sequence[tuple[str, str]],
        log: RequestLog,
        sessions: npt.NDArray[np.generic] | None,
        role: str | None = None,
    ) -> None:
        self._router, self._role = router, role
        self._views = [
            View(replica, place, *pool)
            for place, (replica, pool) in enumerate(zip(replicas, pools, strict=True))
        ]
        # replicas that a request can be sent to
        self._open = [view for view in self._views if role is None or view.role == role]
        self._comes_back = True
        self._sent: list[dict[int, None]] | None = None  # by replica, the rows that were sent to it
        self._log = log
        self._sessions = sessions
        self._homes: dict[object, int] = {}
        router.begin(log.workload)

    @property
    def interval_ps(self) -> int:
        """Interval at which the router looks at all replicas; 0: never."""
        return self._router.interval_ps

    def look(self) -> None:
        """Let the router look at all replicas."""
        self._router.look(self._open)

    def place(self, request: Request, only: Callable[[Seen], bool] | None = None) -> int:
        """The replica for a request, `only` among these if given; NOT_NOW or NOWHERE if none is alive."""
        views = self._open
        if only is not None:
            views = [view for view in views if only(view)]
            if not views:
                return NOT_NOW
        session = None if self._sessions is None else self._sessions[request.index]
        session = None if session == "" else session  # a request on its own
        home = None if session is None else self._homes.get(session)
        if home is None:
            if not views:
                return NOT_NOW if self._comes_back else NOWHERE
            chosen = self._router.choose(request, views)
            if not 0 <= chosen < len(views):
                raise KvsimError(
                    f"router {type(self._router).__name__} must choose a replica from 0 to "
                    f"{len(views) - 1}, got {chosen!r}"
                )
            home = views[chosen].place
            if session is not None:
                self._homes[session] = home
        elif only is not None and all(view.place != home for view in views):
            return NOT_NOW
        self._log.send(request.index, home)
        if self._sent is not None:
            self._sent[home][request.index] = None
        return home

    def sends_to(self, place: int) -> bool:
        """Whether requests are sent to this replica while it is alive."""
        return self._role is None or self._views[place].role == self._role

    # -- replicas that go and come --------------------------------------------------------------------

    def remember(self) -> None:
        """Note from now on where each request is sent."""
        self._sent = [{} for _ in self._views]

    def moved(self, row: int, source: int, target: int) -> None:
        """A request has gone to another replica."""
        if self._sent is not None:
            del self._sent[source][row]
            self._sent[target][row] = None

    def is_open(self, place: int) -> bool:
        """Whether requests can be sent there."""
        return self._views[place] in self._open

    def show(self, place: int, replica: Replica) -> None:
        """Another replica takes this place."""
        self._views[place].show(replica)

    def lose(self, place: int, comes_back: bool) -> list[int]:
        """Send nothing there; `comes_back`: some replica will. Returns the rows that it had, in order."""
        assert self._sent is not None
        rows, self._sent[place] = [row for row in self._sent[place] if not self._log.is_over(row)], {}
        self._comes_back = comes_back
        self.shut(place)
        return rows

    def shut(self, place: int) -> None:
        """Send nothing there; its sessions get another home."""
        self._open = [view for view in self._open if view.place != place]
        self._homes = {session: home for session, home in self._homes.items() if home != place}

    @property
    def seen(self) -> Sequence[View]:
        """The views of replicas that requests can be sent to."""
        return self._open

    def open(self, place: int) -> None:
        """Requests can be sent there again."""
        self._open = sorted([*self._open, self._views[place]], key=lambda view: view.place)


def sessions_of(log: RequestLog) -> npt.NDArray[np.generic]:
    """The column that names each request's session, for `sticky`."""
    labels = log.workload.labels
    for name in ("session", "client"):
        if name in labels:
            return labels[name]
    raise KvsimError(f"sticky needs a trace with sessions, got one with {', '.join(labels) or 'no labels'}")
