"""Opens replicas to requests and shuts them, whoever sends requests to them.

Replicas of a fleet are chosen by one dispatcher; of prefill and decode pools, by one for each side.
"""

from collections.abc import Sequence

from kvsim.sim.serving.dispatcher import Dispatcher, View
from kvsim.sim.serving.hand_over import HandOver
from kvsim.sim.serving.lives import Run
from kvsim.sim.serving.migration import Migrations
from kvsim.sim.serving.replica import Replica


class Gates:
    """Which replicas get requests.

    Parameters
    ----------
    hand_over : HandOver or None
        Its prompts may wait for a decode replica.
    migrations : Migrations or None
        They go to open replicas.
    """

    def __init__(
        self,
        run: Run,
        dispatchers: Sequence[Dispatcher],
        hand_over: HandOver | None,
        migrations: Migrations | None,
    ) -> None:
        self.run, self.dispatchers = run, dispatchers
        self._hand_over, self._migrations = hand_over, migrations

    def dispatcher(self, place: int) -> Dispatcher:
        """Who sends requests to this replica."""
        return next(each for each in self.dispatchers if each.sends_to(place))

    def open(self, place: int, now_ps: int) -> None:
        """Send requests there again, first those that waited for any replica."""
        self.dispatcher(place).open(place)
        self.run.arrivals.opened()
        if self._hand_over is not None:
            self._hand_over.opened(now_ps)

    def shut(self, place: int) -> None:
        """Send nothing there."""
        self.dispatcher(place).shut(place)

    def show(self, place: int, replica: Replica) -> None:
        """Another replica takes this place."""
        self.dispatcher(place).show(place, replica)

    def seen(self, places: Sequence[int]) -> Sequence[View]:
        """Those of these replicas that get requests."""
        return [view for view in self.dispatcher(places[0]).seen if view.place in places]

    def rows_of(self, dead: Replica, place: int, comes_back: bool, now_ps: int) -> list[int]:
        """A replica has died: send nothing there; returns the rows that start over, in order.

        `comes_back`: it, or one that could replace it, will serve.
        """
        rows = self.dispatcher(place).lose(place, comes_back)
        if self._migrations is not None:
            self._migrations.lose(place, rows)
        return rows if self._hand_over is None else self._hand_over.lose(dead, now_ps)

    def left_ps(self, replica: Replica) -> int:
        """When it last freed a prompt that it held, or a request left for another replica; 0: never."""
        freed_ps = 0 if self._hand_over is None else self._hand_over.freed_ps(replica.server)
        return freed_ps if self._migrations is None else self._migrations.left_ps(replica)
