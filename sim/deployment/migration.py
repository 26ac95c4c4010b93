"""Migration of running requests: what it can be combined with, and the link that copies their blocks."""

from kvsim.allocators.paged import Paged
from kvsim.sim.deployment.deployment import Deployment
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


def migrations_of(deployment: Deployment, scheduler: Scheduler, work: Workload) -> Migrations:
    """The migrations of a fleet of equal servers; KvsimError for options that they exclude."""
    _check(deployment, scheduler)
    if work.samples is not None or work.beam is not None:
        raise KvsimError(f"requests must have one answer each {WITH}, got samples or beams")
    policy = migration_of(deployment.fleet.migrate)
    figures = link_figures(policy.link, deployment, "migrate: link")
    way = Way(int(figures.load_gb_per_s * 1e9), int(figures.latency_us * 1e6))
    gpus = deployment.tensor_parallel_size * deployment.pipeline_parallel_size
    seats = deployment.served_engine.max_num_seqs
    return Migrations(policy, way, deployment.block_bytes_per_gpu, gpus, seats)


def _check(deployment: Deployment, scheduler: Scheduler) -> None:
    engine = deployment.engine
    if deployment.pools:
        raise KvsimError(f"pool must be left out {WITH}: its replicas are equal")
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
