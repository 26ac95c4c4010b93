"""Migration of running requests: the settings it allows, and the link that copies their blocks."""

from collections.abc import Sequence

from kvsim.allocators.paged import Paged
from kvsim.sim.deployment.deployment import Deployment, Pool
from kvsim.sim.deployment.offloading import link_figures
from kvsim.sim.deployment.speculation import CONFIG, SHORT
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.kv_layers import EVERY_TOKEN
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.schedulers.vllm_v1 import VllmV1
from kvsim.sim.serving.link import Way
from kvsim.sim.serving.llumnix import migration_of
from kvsim.sim.serving.migration import Migrations
from kvsim.sim.workload import Workload

WITH = "with migrate"


def migrations_of(deployment: Deployment, schedulers: Sequence[Scheduler], work: Workload) -> Migrations:
    """The migrations of a fleet; KvsimError for options that do not work with them.

    Parameters
    ----------
    schedulers : sequence of Scheduler
        One of each pool.
    """
    pools = deployment.every_pool
    for pool, scheduler in zip(pools, schedulers, strict=True):
        _check(pool.server, scheduler)
        _check_alike(pool, pools[0])
    if work.samples is not None or work.beam is not None:
        raise KvsimError(f"requests must have one answer each {WITH}, got samples or beams")
    policy, first = migration_of(deployment.fleet.migrate), pools[0].server
    figures = link_figures(policy.link, first, "migrate: link")
    way = Way(int(figures.load_gb_per_s * 1e9), int(figures.latency_us * 1e6))
    gpus = first.tensor_parallel_size * first.pipeline_parallel_size
    seats = [pool.server.served_engine.max_num_seqs for pool in pools for _ in range(pool.replicas)]
    return Migrations(policy, way, first.block_bytes_per_gpu, gpus, seats)


def _check_alike(pool: Pool, first: Pool) -> None:
    """Raise KvsimError unless one pool's blocks can be copied to the other as they are, for any request."""
    if pool.role != "both":
        raise KvsimError(f"pool must have the role both {WITH}, got {pool.role}")
    server, its = pool.server, first.server
    for name, mine, other in (
        ("block_size", server.engine.block_size, its.engine.block_size),
        ("kv_cache_dtype", server.kv_cache_dtype, its.kv_cache_dtype),
        ("max_model_len", server.max_model_len, its.max_model_len),
        ("tensor_parallel_size", server.tensor_parallel_size, its.tensor_parallel_size),
        ("pipeline_parallel_size", server.pipeline_parallel_size, its.pipeline_parallel_size),
    ):
        if mine != other:
            raise KvsimError(f"{name} must be the same in all pools {WITH}, got {other} and {mine}")


def _check(deployment: Deployment, scheduler: Scheduler) -> None:
    engine = deployment.engine
    if type(scheduler) is not VllmV1:
        raise KvsimError(f"scheduler must be vllm-v1 {WITH}, got {deployment.scheduler_name}")
    if deployment.allocator is not Paged:
        raise KvsimError(f"allocator must be paged {WITH}, got {engine.allocator}")
    if any(layers.kind not in EVERY_TOKEN for layers in deployment.served_model.kv_layers):
        raise KvsimError(f"model must keep every token in all layers {WITH}, got {deployment.model.name}")
    if engine.policy not in {"fcfs", "priority"}:
        raise KvsimError(f"policy must be fcfs or priority {WITH}, got {engine.policy!r}")
    for name in (CONFIG, *SHORT, "kv_offloading_size", "secondary_tiers", "tier"):
        if engine.options.get(name) not in {None, "0", 0}:
            raise KvsimError(f"{name} must be left out {WITH}, got {engine.options[name]!r}")
