"""Tiers in one spelling: what each part means, that vLLM's flags mean the same, and errors."""

import pytest
from support.cases import GPU, MODEL
from support.settings import deployed, engine_config

import kvsim
from kvsim.sim.deployment.host_memory import host_gib
from kvsim.sim.deployment.offloading import NAMES
from kvsim.sim.deployment.tier_words import TierWords, tier_words
from kvsim.sim.errors import KvsimError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("host:100GiB", ("host", "100GiB", None, None, None)),
        ("host:100GiB:arc:50", ("host", "100GiB", "50", "arc", None)),
        ("ssd:2TiB:6.5/4:lru", ("ssd", "2TiB", "6.5/4", "lru", None)),
        ("ssd:2TiB:read=6.5GB/s", ("ssd", "2TiB", "6.5/6.5", None, None)),
        ("ssd:2TiB:write=4:arc:read=6.5gb/s", ("ssd", "2TiB", "6.5/4", "arc", None)),
        ("ssd:2TiB:6.5GB/s:shared", ("ssd", "2TiB", "6.5", None, 0)),
        ("remote:20TiB:shared:100gb:my.own:Policy", ("remote", "20TiB", "100gb", "my.own:Policy", 0)),
        ("ssd:2TiB:nvme:shared=8", ("ssd", "2TiB", "nvme", None, 8)),
        ("host:1TiB:uplink=200GB/s/150:shared=4", ("host", "1TiB", None, None, 4, "200/150")),
    ],
)
def test_each_part_says_what_it_is(text, words):
    assert tier_words(text, "tier", NAMES) == TierWords(*words)


def told(**settings):
    run = kvsim.simulate(
        model="llama-3.1-8b",
        gpu="h100",
        trace="agents",
        num_prompts=12,
        rate_scale=6,
        kv_tokens=40_000,
        **{"blocks_per_chunk": 16, **settings},
    )
    return {name: run.summary[name] for name in ("tier", "requests", "duration_s", "latency")}


def test_both_spellings_are_one_server():
    flags = told(
        kv_offloading_size="8GiB",
        kv_offloading_policy="arc",
        kv_offloading_link="6.5:4",
        secondary_tiers="ssd:64GiB:nvme+remote:1TiB:2/1:slru",
    )
    tiers = told(
        tier="host:8GiB:read=6.5GB/s:write=4:arc ssd:64GiB:nvme remote:1TiB:slru:2GB/s/1GB/s",
    )
    assert flags == tiers
    assert flags["tier"]["cascaded_bytes"] > 0


def test_the_host_is_paid_for_however_it_is_said():
    for said, gib in (
        ({"tier": "host:100GiB:lru ssd:2TiB:nvme"}, 100),
        ({"kv_offloading_size": "3"}, 3),
        ({"tier": "host:4GiB:pcie:lru"}, 4),
        ({"tier": "none"}, 0),
        ({}, 0),
    ):
        assert host_gib(deployed(engine_config(**said), model=MODEL, gpu=GPU)) == gib


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tier": "ssd:2TiB:nvme"}, "tier must begin with the host of each replica, as in host:100GiB"),
        (
            {"tier": "host:2GiB:shared"},
            "tier must leave each engine its own host memory; what the replicas of a",
        ),
        (
            {"tier": "host:2GiB:shared=4"},
            "as in ssd:2TiB:nvme:shared=8, got 'host:2GiB:shared=4'",
        ),
        (
            {"tier": "host:2GiB:uplink=200"},
            "tier: uplink must say how many replicas share it, as in host:100GiB:uplink=200:shared=8",
        ),
        (
            {"tier": "host:2GiB:uplink=pcie5:shared=4"},
            "tier: uplink must be a rate in GB/s, as in 120 or 120/90, got 'pcie5'",
        ),
        ({"tier": "host:2GiB:uplink=-5:shared=4"}, "tier: uplink must be above 0 GB/s each way, got '-5'"),
        ({"tier": "host:2GiB:uplink=:shared=4"}, "tier: uplink must be a rate in GB/s above 0, got"),
        ({"tier": f"host:2GiB:0.{'0' * 12}1"}, "tier: link must be at least a byte per second each way"),
        ({"tier": "host:2GiB:read=-5"}, "tier: read must be a rate in GB/s above 0, got 'host:2GiB:read=-5'"),
        ({"tier": "host:2GiB:read=5:write="}, "tier: write must be a rate in GB/s above 0, got"),
        ({"tier": "host:2GiB ssd:1TiB:fast=5"}, "tier must say the link of what is below the host"),
        (
            {"tier": "host:2GiB ssd:1TiB:nvme", "kv_offloading_backend": "simple", "blocks_per_chunk": 1},
            "tier must be the host only with kv_offloading_backend simple, got 'ssd:1TiB:nvme'",
        ),
        ({"tier": "host:2GiB", "policy": "priority"}, "policy must be fcfs with tier, got 'priority'"),
        ({"tier": "host:2GiB:uplink=0:shared=4"}, "tier: uplink must be above 0 GB/s each way, got '0'"),
        ({"tier": "host:2GiB:shared=4:shared"}, "tier must say one shared of a tier"),
        ({"tier": "host:2GiB ssd:1TiB:nvme:shared=1"}, "tier must be shared by 2 replicas or more, as in"),
        ({"tier": "host:2GiB ssd:1TiB:nvme:shared=-2"}, "tier must be shared by 2 replicas or more, as in"),
        ({"tier": "host:2GiB ssd:1TiB:nvme:uplink=9:shared=2"}, "tier must have an uplink at the host only"),
        (
            {"kv_offloading_size": "2GiB", "secondary_tiers": "ssd:1TiB:nvme:uplink=9"},
            "secondary_tiers must have no uplink, got 'ssd:1TiB:nvme:uplink=9'",
        ),
        (
            {"tier": "host:2GiB:uplink=9:shared", "kv_offloading_backend": "lmcache", "blocks_per_chunk": 1},
            "tier must have no uplink with kv_offloading_backend lmcache, got 'host:2GiB:uplink=9:shared'",
        ),
        ({"tier": "host"}, "tier must be as in ssd:2TiB:nvme"),
        ({"tier": "host:2GiB:sieve"}, "tier must evict from the host by lru or arc with"),
        ({"tier": "host:2GiB:50:25"}, "tier must say one link of a tier, got 'host:2GiB:50:25'"),
        ({"tier": "host:2GiB:50:read=25"}, "tier must say one link of a tier, got 'host:2GiB:50:read=25'"),
        ({"tier": "host:2GiB:lru:arc"}, "tier must say one policy of a tier"),
        ({"tier": "host:2GiB ssd:1TiB"}, "tier must say the link of what is below the host, as in ssd:2TiB"),
        (
            {"tier": "host:2GiB", "kv_offloading_size": "1GiB"},
            "kv_offloading_size must be left out with tier",
        ),
        ({"tier": "none", "kv_offloading_size": "4GiB"}, "kv_offloading_size must be left out with tier"),
        ({"tier": "host:much"}, "tier must be a size such as 100GiB"),
        ({"tier": "host:1MiB"}, "tier must hold a chunk of"),
        ({"tier": "host:2GiB ssd:1MiB:nvme"}, "tier must hold a chunk of"),
        ({"tier": "host:2GiB ssd:much:nvme"}, "tier must be a size such as 100GiB"),
        ({"tier": "host:2GiB", "scheduler": "vllm-v1@0.11.0"}, "tier must be left out for scheduler"),
    ],
)
def test_what_cannot_be_said_is_refused_in_one_line(settings, said):
    with pytest.raises(KvsimError) as refused:
        told(**settings)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
