"""Servers of opt-13b above tiers, with blocks of 4 tokens and steps of 20 ms, and traffic for them."""

from dataclasses import replace

from kvsim.sim.build import build_engine
from kvsim.sim.serving.fleet import FleetConfig
from support.cases import GPU, MODEL, Row, workload
from support.settings import deployed, engine_config

TOKEN_BYTES = 819_200
"""Bytes of opt-13b's keys and values per token."""


def mib(chunks, tokens=4):
    """Room for `chunks` chunks and one byte more."""
    return f"{(chunks * tokens * TOKEN_BYTES + 1) / 2**20}MiB"


def below(chunks, link="1000000"):
    """A host for `chunks` chunks of one block."""
    return {"kv_offloading_size": mib(chunks), "kv_offloading_link": link}


def one_by_one(rng, count):
    """Requests that each come when the previous one is done, with shared prefixes; one token each."""
    rows = []
    for _ in range(count):
        kind = rng.choice(["alone", "system", "same", "same"])
        rows.append(Row(200, 4 * rng.randint(1, 12) + 1, [1], kind, rng.randint(0, 4), 0))
    return spaced(rows)


def spaced(rows, gap_ps=10**11):
    """The requests of these rows, with gaps in units of `gap_ps`."""
    return workload(rows, None, samples=False, gap_ps=gap_ps, tick_ps=1)


def engine_above(work, blocks, *, cost="constant:0.02", fleet=None, max_span=1 << 20, **settings):
    """The engine over `blocks` blocks, or equal ones in a fleet; synchronous by default."""
    usual = {"scheduler": "vllm-v1@0.33.0", "block_size": 4, "max_model_len": 128, "async_scheduling": False}
    engine = engine_config(**{**usual, "enable_prefix_caching": True, **settings})
    where = deployed(engine, model=MODEL, gpu=GPU, num_gpu_blocks=blocks, cost=cost)
    return build_engine(replace(where, fleet=fleet or FleetConfig()), work, max_span=max_span)


def hits(work, blocks, fleet=None, **settings):
    """Tokens of prompts that were hit, in the GPU's memory or below."""
    result = engine_above(work, blocks, fleet=fleet, **settings).run()
    assert result.finished.all()
    return result.hit_tokens + (result.tier.hit_tokens if result.tier else 0)


def first_tokens_ps(result):
    """From arrival to first token."""
    return (result.requests["first_token_ps"] - result.arrival_ps).tolist()
