"""The summary of a fleet: replicas, pools, deaths, scaling, hand-overs and migrations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kvsim.sim.cost.frontend import frontend_of
from kvsim.sim.deployment.deployment import Deployment, Pool
from kvsim.sim.options.goals import Goals
from kvsim.sim.record import metrics
from kvsim.sim.record.attainment import SECONDS_PER_HOUR, good_requests
from kvsim.sim.record.fleet_result import part
from kvsim.sim.record.outside import seconds_of
from kvsim.sim.record.scaled import over_time
from kvsim.sim.serving.engine import Engine
from kvsim.sim.serving.fleet import OF_SCALING
from kvsim.sim.serving.hand_over import Totals as HandedOver
from kvsim.sim.serving.migration import Totals as Migrated
from kvsim.sim.serving.scaler import Scaler
from kvsim.sim.workload import PS_PER_S

Json = dict[str, object]

CHANGING = ("fail", "scale", "migrate", *OF_SCALING)
"""Settings of a fleet that have their own sections."""


@dataclass(frozen=True)
class FleetSummary:
    """A fleet after its run."""

    engine: Engine
    deployment: Deployment
    goals: Goals

    def of(self, requests: Mapping[str, metrics.Column]) -> Json:
        """The parts that a fleet's summary has in addition; none for a single server."""
        fleet = self.deployment.fleet
        if fleet.replicas == 1:
            return {}
        frontend = frontend_of(self.deployment)
        found: list[Json] = []
        pools: list[Json] = []
        for pool, places in self._places:
            names = {"allocator": pool.server.engine.allocator, "scheduler": pool.server.engine.scheduler}
            for place in places:
                alone = part(self.engine.results[place], place)
                numbers = metrics.summary(
                    alone, metrics.request_table(alone, seconds_of(alone, frontend, fleet.replicas))
                )
                counts = numbers.pop("engine")
                engine = {**names, **(counts if isinstance(counts, dict) else {})}
                label = f"replica {place}, {pool.name}" if pool.name else f"replica {place}"
                found.append({"label": label, **numbers, "engine": engine})
            if pool.name:
                pools.append(self._pool(pool, places, requests))
        several: Json = {"pools": pools} if pools else {}
        if self.engine.deaths is not None:
            several["faults"] = self._faults(requests)
        if self.engine.scaler is not None:
            several["scaling"] = self._scaling(self.engine.scaler, requests)
        if self.engine.hand_over is not None:
            several["hand_over"] = self._hand_over(self.engine.hand_over.totals())
            mixed = self.engine.hand_over.mixed
            if mixed is not None:
                joins = sum(change.joins for change in mixed.changes)
                several["mixed_pool"] = {"requests": mixed.requests, "joins": joins}
        if self.engine.migrations is not None:
            several["migration"] = self._migration(self.engine.migrations.totals())
        return {
            "fleet": {name: value for name, value in fleet.as_json().items() if name not in CHANGING},
            **several,
            "replicas": found,
        }

    @staticmethod
    def _hand_over(totals: HandedOver) -> Json:
        """Prompts handed over from prefill to decode servers."""
        mean_of = PS_PER_S * totals.requests
        return {
            "requests": totals.requests,
            "read_bytes": totals.read_bytes,
            "mean_transfer_s": totals.transfer_ps / mean_of if mean_of else None,
            "mean_held_s": totals.held_ps / mean_of if mean_of else None,
            "peak_held_share": totals.peak_held_share,
        }

    @staticmethod
    def _migration(totals: Migrated) -> Json:
        """Requests that moved while they ran."""
        mean_of = totals.migrations
        return {
            "migrations": totals.migrations,
            "requests": totals.requests,
            "given_up": totals.given_up,
            "copied_bytes": totals.copied_bytes,
            "mean_stages": totals.stages / mean_of if mean_of else None,
            "mean_copy_s": totals.duration_ps / PS_PER_S / mean_of if mean_of else None,
            "mean_downtime_s": totals.downtime_ps / PS_PER_S / mean_of if mean_of else None,
        }

    def _scaling(self, scaler: Scaler, requests: Mapping[str, metrics.Column]) -> Json:
        """Number of replicas over time, and their cost."""
        end_ps, slo = self._end_ps, self.goals.limits
        good = None if slo is None else good_requests(slo, requests)
        whole = self._scaled(scaler, self._all_places)
        pools: Json = {}
        if self.deployment.pools:
            pools["pools"] = [
                {"name": pool.name, "role": pool.role} | self._scaled(scaler, places)
                for pool, places in self._places
            ]
        return {
            "policy": self.deployment.fleet.scale,
            **whole,
            **pools,
            "over_time": over_time(
                self.engine.log.arrival_ps,
                good,
                [partial(_alive_ps, scaler, places) for _, places in self._places],
                end_ps,
            ),
            "changes": [
                {"time_s": change.at_ps / PS_PER_S, "replica": change.place, "state": change.state}
                for change in scaler.changes
            ],
        }

    def _scaled(self, scaler: Scaler, places: Sequence[int]) -> Json:
        """The same for some replicas."""
        end_ps, servers = self._end_ps, self._servers
        states = [change.state for change in scaler.changes if change.place in places]
        gpu_hours, cost = self.billed(places)
        return {
            "gpu_hours": gpu_hours,
            "gpu_hours_of_all": sum(servers[place].gpus for place in places)
            * end_ps
            / PS_PER_S
            / SECONDS_PER_HOUR,
            "cost": cost,
            "mean_replicas": _alive_ps(scaler, places, end_ps) / end_ps if end_ps else None,
            "starts": states.count("starting"),
            "drains": states.count("draining"),
        }

    def billed(self, places: Sequence[int] | None = None) -> tuple[float, float | None]:
        """GPU-hours of some replicas, or all, while they were there; cost, None if a price is unknown."""
        places, end_ps, scaler = places or self._all_places, self._end_ps, self.engine.scaler
        alive_ps = [end_ps] * len(self._all_places) if scaler is None else scaler.alive_ps(end_ps)
        hours = [
            self._servers[place].gpus * alive_ps[place] / PS_PER_S / SECONDS_PER_HOUR for place in places
        ]
        prices = [self.goals.price_of_server(self._servers[place]) for place in places]
        if None in prices:
            return sum(hours), None
        return sum(hours), sum(hour * (price or 0) for hour, price in zip(hours, prices, strict=True))

    def mean_replicas(self, since_ps: int, until_ps: int) -> list[float]:
        """Mean number of billed replicas of each pool between two times; all replicas if none come and go."""
        scaler, span_ps = self.engine.scaler, until_ps - since_ps
        if scaler is None or span_ps <= 0:
            return [pool.replicas for pool, _ in self._places]
        return [
            (_alive_ps(scaler, places, until_ps) - _alive_ps(scaler, places, since_ps)) / span_ps
            for _, places in self._places
        ]

    @property
    def _all_places(self) -> range:
        return range(self.deployment.fleet.replicas)

    @property
    def _end_ps(self) -> int:
        return max(each.end_ps for each in self.engine.results)

    @property
    def _servers(self) -> list[Deployment]:
        """The server of each replica."""
        return [pool.server for pool in self.deployment.every_pool for _ in range(pool.replicas)]

    @property
    def _places(self) -> list[tuple[Pool, range]]:
        """Each pool and the places of its replicas."""
        found, first = [], 0
        for pool in self.deployment.every_pool:
            found.append((pool, range(first, first + pool.replicas)))
            first += pool.replicas
        return found

    def _faults(self, requests: Mapping[str, metrics.Column]) -> Json:
        """The cost of deaths of replicas; only for a run with faults."""
        deaths = self.engine.deaths
        assert deaths is not None
        roles = [pool.role for pool in self.deployment.every_pool for _ in range(pool.replicas)]
        answering = [
            lives for role, lives in zip(roles, self.engine.lives.lives, strict=True) if role != "prefill"
        ]
        generated = sum(life.recorder.tally.tokens() for lives in answering for life in lives)
        answered = int(requests["output_tokens"][requests["status"] != "rejected"].sum())
        return {
            "deaths": deaths.lost.deaths,
            "resent_requests": deaths.lost.resent,
            "wasted_output_tokens": generated - answered,
            "lost_kv_tokens": deaths.lost.kv_tokens,
            "down_s": deaths.lost.down_ps / PS_PER_S,
            "times": [
                {
                    "time_s": each.at_ps / PS_PER_S,
                    "replica": each.replica,
                    "back_s": None if each.back_ps is None else each.back_ps / PS_PER_S,
                }
                for each in deaths.died
            ],
        }

    def _pool(self, pool: Pool, places: range, requests: Mapping[str, metrics.Column]) -> Json:
        """Numbers of a pool's servers together, and their cost while they were billed."""
        home = requests["replica"].astype(int)
        its = (places.start <= home) & (home < places.stop)
        done = its & (requests["status"] != "rejected")
        gpu_hours, cost = self.billed(places)
        return {
            "name": pool.name,
            "role": pool.role,
            "gpu": pool.server.gpu.name,
            "gpus": pool.gpus,
            "replicas": pool.replicas,
            "first_replica": places.start,
            "requests": int(its.sum()),
            "finished": int(done.sum()),
            "output_tokens": int(requests["output_tokens"][done].sum()),
            "latency": metrics.latencies(requests, done),
            "gpu_hours": gpu_hours,
            "cost": cost,
        }


def _alive_ps(scaler: Scaler, places: Sequence[int], until_ps: int) -> int:
    """Billed time of some replicas up to a time, summed."""
    alive_ps = scaler.alive_ps(until_ps)
    return sum(alive_ps[place] for place in places)
