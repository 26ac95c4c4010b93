"""Tiers, drafts, policies, pools, deaths and scaling, mixed at random: both modes agree, nothing is lost.

A case is a few milliseconds of integers, so that `--fuzz 100000` is a matter of an hour; the command lines of
test_modes.py try the same with files.
"""

from dataclasses import fields
from random import Random

import pytest
from support.attack import tried
from support.mixed import AROUND, BELOW, OWN, agree, draw_mixture

from kvsim.sim.policies import POLICIES
from kvsim.sim.routers import ROUTERS
from kvsim.sim.schedulers.vllm_options import VllmV1Options
from kvsim.sim.serving.fleet import FleetConfig

pytestmark = pytest.mark.slow


def test_mixed_work_is_the_same_in_both_modes_and_nothing_is_lost(cases):
    def case(rng):
        try:
            return agree(draw_mixture(rng))
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}") from error

    found = tried("mixed work", cases(150), case)
    assert found["accepted"] > found["refused"] / 2


def test_every_option_policy_router_and_kind_of_fleet_is_mixed():
    options, fleets, policies, routers, below, around = (set() for _ in range(6))
    plain = FleetConfig()
    for number in range(3000):
        mixture = draw_mixture(Random(f"mixed work {number}"))
        deployment = mixture.deployment
        servers = [pool.server for pool in deployment.pools] or [deployment]
        for server in servers:
            options |= {name for name, value in server.engine.options.items() if value is not None}
            policies.add(server.engine.policy)
        fleets |= {
            each.name for each in fields(plain) if vars(plain)[each.name] != vars(deployment.fleet)[each.name]
        }
        routers.add(deployment.fleet.router)
        below.add(mixture.words[1])
        around.add(mixture.words[2])
    assert {each.name for each in fields(VllmV1Options)} <= options
    assert {each.name for each in fields(FleetConfig)} == fleets
    assert {*POLICIES, *OWN, "fcfs", "priority", "sjf"} <= policies
    assert (ROUTERS.keys(), {*BELOW}, {*AROUND, "apart", "migrating"}) == (routers, below, around)
