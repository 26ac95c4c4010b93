"""Replicas of one machine: a link that their copies share, and tiers that belong to the machine."""

from dataclasses import replace
from random import Random

import pytest
from support.cases import Row, draw_case
from support.seeded import noted
from support.shared_tiers import ROUTERS, above_shared, differences, found, run
from support.tiered import TOKEN_BYTES, engine_above, first_tokens_ps, mib, one_by_one, spaced

from kvsim.allocators.eviction.lru import Lru
from kvsim.sim.deployment.tier_words import OTHERS
from kvsim.sim.errors import NoProgress
from kvsim.sim.link_summary import link_shares
from kvsim.sim.serving.fleet import FleetConfig
from kvsim.sim.serving.link import Link, Way
from kvsim.sim.serving.secondary import Secondary
from kvsim.sim.serving.uplink import Uplink
from kvsim.sim.workload import PS_PER_S

GB_S = 10**9
MS = 10**9
"""picoseconds"""


def test_a_copy_gets_what_earlier_ones_leave_and_not_more_than_its_own_link_carries():
    """50 GB/s each, 80 together: A takes 0 to 40 ms; B, 2.4 GB from 10 on, has 0.9 by 40, the rest at 50."""
    uplink = Uplink(80 * GB_S)
    assert uplink.end_of(0, 2 * GB_S, 50 * GB_S, 0) == 40 * MS
    assert uplink.end_of(10 * MS, 24 * GB_S // 10, 50 * GB_S, 10 * MS) == 70 * MS
    # C is queued at 20 ms: nothing is left before 40, then 30 until 70, then its own 50
    assert uplink.end_of(20 * MS, 14 * GB_S // 10, 50 * GB_S, 20 * MS) == 80 * MS
    # D is queued now, but its own link begins with it at 100 ms: it delays nobody before
    assert uplink.end_of(100 * MS, GB_S, 50 * GB_S, 30 * MS) == 120 * MS
    assert uplink.end_of(30 * MS, GB_S // 2, 50 * GB_S, 30 * MS) == 84 * MS  # 0.3 GB until 80
    # 7.3 GB at 80 GB/s; 6.3 of them by 90 ms, 2.1 by 30, when the last came
    assert [uplink.busy_by(at * MS) for at in (200, 90, 10)] == [
        (91_250_000_000, 200 * MS),
        (78_750_000_000, 90 * MS),
        (26_250_000_000, 30 * MS),
    ]


def links(count, own, uplink, latency_ps=0):
    """Links of GPUs, 1,000 bytes a block, of which each replica has one; rates in bytes per second."""
    way = Way(own, latency_ps)
    made = [Link(way, way, 1000) for _ in range(count)]
    both = {True: Uplink(uplink), False: Uplink(uplink)}
    for link in made:
        link.shared = both
    return made


@pytest.mark.parametrize("seed", range(20))
def test_a_wide_uplink_changes_nothing_and_a_narrow_one_is_the_link_of_a_lone_replica(seed):
    rng, now_ps = Random(seed), 0
    wide = links(3, 7919, 3 * 7919, 13)
    (narrow,) = links(1, 7919, 997, 13)
    plain = [Link(Way(7919, 13), Way(7919, 13), 1000) for _ in range(3)]
    alone = Link(Way(997, 13), Way(997, 13), 1000)
    for _ in range(60):
        now_ps += rng.choice([0, 10**10, rng.randint(0, 10**13)])
        place, loads, blocks = rng.randrange(3), rng.random() < 0.5, rng.randint(1, 9)
        assert wide[place].copied_ps(loads, blocks, now_ps) == plain[place].copied_ps(loads, blocks, now_ps)
        assert narrow.copied_ps(loads, blocks, now_ps) == alone.copied_ps(loads, blocks, now_ps)
    for one, other in zip([*wide, narrow], [*plain, alone], strict=True):
        assert [one.busy_ps(way) for way in (True, False)] == [other.busy_ps(way) for way in (True, False)]


@pytest.mark.parametrize("seed", range(20))
def test_all_copies_together_are_never_faster_than_the_uplink_and_keep_it_busy(seed):
    rng, uplink = Random(seed), 1500
    own, ends_ps, blocks = links(4, 1000, uplink), [], 0
    for _ in range(100):  # all are queued at once: the backlog ends neither early nor late
        each = rng.randint(1, 9)
        blocks += each
        ends_ps.append(own[rng.randrange(4)].copied_ps(True, each, 0))
    assert max(ends_ps) >= -(-blocks * 1000 * 10**12 // uplink)
    longest = max(link.busy_ps(True) for link in own)
    assert max(ends_ps) == longest  # own links never wait for each other's turn


def test_every_gpu_of_a_replica_takes_its_part_of_the_uplink():
    one, other = links(2, 1000, 4000)
    for link in (one, other):
        link.gpus = 4
    assert one.copied_ps(True, 1, 0) == 10**12  # 4 GPUs, a link each, all of the uplink
    assert other.copied_ps(True, 1, 0) == 2 * 10**12


# -- whole runs ---------------------------------------------------------------------------------------


def on_machines(seed, size, uplink):
    """A drawn case above a shared tier, spelled as `tier`, with machines of `size` replicas."""
    rng = Random(seed)
    case = above_shared(rng, draw_case(Random(seed), "vllm-v1@0.33.0"), f":shared={size}")
    options = case.engine.options
    link = options["kv_offloading_link"].replace(":", "/")
    words = ["host", options["kv_offloading_size"], link, options["kv_offloading_policy"], *uplink]
    tier = " ".join([":".join(words), *options["secondary_tiers"].split("+")])
    kept = {name: value for name, value in options.items() if name not in OTHERS}
    return replace(case, engine=replace(case.engine, options=kept | {"tier": tier}))


@noted
def check_seed(seed):
    rng = Random(-seed)
    size, rate = rng.choice([2, 3]), rng.choice(["0.05", "0.4/0.1", "3"])
    case = on_machines(seed, size, (f"uplink={rate}", f"shared={rng.choice([2, size])}"))
    fleet = FleetConfig(replicas=rng.choice([2, 3, 5]), router=rng.choice(ROUTERS[:3]), seed=seed)
    slow, fast = (run(case, max_span, fleet, seed % 2 == 1) for max_span in (1, 1 << 20))
    assert (differences(slow, fast), slow.tier) == (set(), fast.tier), seed
    return slow


def test_fast_forward_equals_step_mode():
    assert sum(check_seed(seed).tier.loaded_bytes > 0 for seed in range(30)) > 5


@pytest.mark.slow
def test_fast_forward_equals_step_mode_in_more_cases():
    for seed in range(100, 400):
        try:
            check_seed(seed)
        except NoProgress:
            continue


@pytest.mark.parametrize("seed", range(3))
def test_machines_of_two_find_what_two_fleets_of_two_find(seed):
    """What one replica of a machine stored, the other finds, and those of other machines do not."""
    work, endless = one_by_one(Random(seed), 80), f"ssd:{mib(10_000)}:1000000"
    alone, pairs, fleet, each = (
        found(work, 4, endless + scope) for scope in (":shared=4", ":shared=2", ":shared", "")
    )
    assert alone == fleet > pairs > each


def shares(fleet, tier, **settings):
    """How busy each link was, of 80 requests with 4 blocks of GPU memory each; and the run."""
    above = {"enable_prefix_caching": False, "tier": tier, **settings}
    engine = engine_above(one_by_one(Random(0), 80), 30, fleet=fleet, **above)
    result = engine.run()
    return link_shares(engine.lives.lives, engine.absences(), result.end_ps), result


def test_each_link_is_told_once_by_who_shares_it():
    host, near = f"host:{mib(6)}:1:uplink=2:shared=2", f"ssd:{mib(90)}:0.5/0.2:shared=2"
    fleet = FleetConfig(replicas=4, router="round-robin")
    found, result = shares(fleet, f"{host} {near} own:{mib(90)}:3 far:{mib(90)}:3:shared")
    pairs = [f"{name} of machine {number}" for name in ("uplink", "ssd") for number in (0, 1)]
    assert [*found] == [*pairs, "own", "far of all"]
    moved = {
        "load_busy_share": result.tier.loaded_bytes / 2e9,
        "store_busy_share": result.tier.stored_bytes / 2e9,
    }
    for way, busy_s in moved.items():
        both = sum(found[name][way] for name in pairs[:2])
        assert both * result.end_ps / PS_PER_S == pytest.approx(busy_s)
    assert all(0 < each[way] < 1 for each in found.values() for way in moved if each[way])
    assert all(found[name]["load_busy_share"] > 0 for name in pairs)


def test_links_of_a_replica_that_is_not_there_are_not_idle():
    """Replica 0 is dead from the beginning: the links are as busy as those of replica 1 alone."""
    tier = f"host:{mib(6)} own:{mib(90)}:3"
    dead = FleetConfig(replicas=2, router="round-robin", fail="replica=0:at=0")
    (of_two, _), (of_one, _) = shares(dead, tier), shares(FleetConfig(), tier)
    assert of_two == of_one
    assert 0 < of_one["own"]["store_busy_share"] < 1


def test_a_link_whose_queue_outlasts_the_run_was_busy_until_then():
    """2,000 bytes at 1,000 a second; what comes at 4 s, after the end, is measured until then."""
    second, link = 1000 * MS, Link(Way(1000), Way(1000), 100)
    tier = Secondary("ssd", Lru(100), link)
    tier.write([(0, 0, 20)], 0)
    assert [tier.busy_by(False, at * second)[0] for at in (1, 3)] == [second, 2 * second]
    tier.write([(0, 50, 10)], 4 * second)
    assert tier.busy_by(False, second) == (2 * second, 4 * second)
    assert tier.busy_by(False, 9 * second) == (3 * second, 9 * second)


def test_lives_of_a_replica_count_one_after_the_other():
    fleet = FleetConfig(replicas=2, router="round-robin", fail="replica=0:at=2:for=0.5")
    found, result = shares(fleet, f"host:{mib(6)}:1 ssd:{mib(90)}:0.5")
    moved_s = result.tier.promoted_bytes / 5e8
    there_s = 2 * result.end_ps / PS_PER_S - 0.5
    assert found["ssd"]["load_busy_share"] * there_s == pytest.approx(moved_s, rel=0.05)


def test_copies_of_a_machine_wait_for_each_other_and_find_the_same():
    """Two replicas load at once: over an uplink of 1 GB/s the second load waits for the first."""
    rows = [Row(0, 64, [1], "same", key, 0) for key in (0, 1)]
    rows += [Row(10_000, 64, [1], "same", 0, 0), Row(0, 64, [1], "same", 1, 0)]
    loaded_ps = {}
    for rate in ("1", "2"):
        tier, fleet = f"host:{mib(40, 32)}:1:uplink={rate}:shared=2", FleetConfig(replicas=2)
        above = {"block_size": 32, "enable_prefix_caching": False, "tier": tier}
        result = engine_above(spaced(rows, MS), 4, fleet=fleet, **above).run()
        loaded_ps[rate] = [ps - 20 * 10**9 for ps in first_tokens_ps(result)[2:]]
        assert result.tier.hit_tokens == 128
    alone_ps = 10_000_000 + 64 * TOKEN_BYTES * 10**3
    assert loaded_ps["2"] == [alone_ps, alone_ps]
    assert loaded_ps["1"] == [alone_ps, 2 * alone_ps - 10_000_000]
