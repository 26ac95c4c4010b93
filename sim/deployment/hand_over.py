"""Pools of prefill and decode servers: the settings they allow, and the links between them."""

from collections.abc import Sequence

from kvsim.allocators.paged import Paged
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.offloading import link_figures
from kvsim.sim.deployment.speculation import CONFIG, SHORT
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.kv_layers import EVERY_TOKEN
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.schedulers.vllm_options import VllmV1Options
from kvsim.sim.schedulers.vllm_v1 import VllmV1
from kvsim.sim.serving.decision import NEVER_PS
from kvsim.sim.serving.hand_over import HandOver, Pull
from kvsim.sim.serving.link import Link, Way
from kvsim.sim.serving.lower_tier import LowerTier
from kvsim.sim.serving.reading import Reads
from kvsim.sim.serving.server import Server
from kvsim.sim.workload import Workload

WITH = "with prefill and decode pools"


def check_apart(whole: Deployment, schedulers: Sequence[Scheduler]) -> None:
    """Raise KvsimError for settings that prefill and decode pools do not allow."""
    first = whole.pools[0].server
    for pool, scheduler in zip(whole.pools, schedulers, strict=True):
        server, options = pool.server, pool.server.engine.options
        if not (type(scheduler) is VllmV1 and scheduler.version == "0.33.0"):
            raise KvsimError(f"scheduler must be vllm-v1@0.33.0 {WITH}, got {server.scheduler_name}")
        if server.allocator is not Paged:
            raise KvsimError(f"allocator must be paged {WITH}, got {server.engine.allocator}")
        if any(layers.kind not in EVERY_TOKEN for layers in server.served_model.kv_layers):
            raise KvsimError(f"model must keep every token in all layers {WITH}, got {server.model.name}")
        if server.engine.policy != "fcfs":
            raise KvsimError(f"policy must be fcfs {WITH}, got {server.engine.policy!r}")
        for name in (CONFIG, *SHORT, "kv_offloading_size", "tier"):
            if options.get(name) not in (None, "0", 0):
                raise KvsimError(f"{name} must be left out {WITH}, got {options[name]!r}")
        for name, mine, its in (
            ("block_size", server.engine.block_size, first.engine.block_size),
            ("max_model_len", server.max_model_len, first.max_model_len),
            ("kv_cache_dtype", server.kv_cache_dtype, first.kv_cache_dtype),
        ):
            if mine != its:
                raise KvsimError(f"{name} must be the same in all pools {WITH}, got {its} and {mine}")


def check_work(work: Workload) -> None:
    """Raise KvsimError for requests that cannot be handed over."""
    if work.samples is not None or work.beam is not None:
        raise KvsimError(f"requests must have one answer each {WITH}, got samples or beams")


def connect(
    deployment: Deployment, scheduler: Scheduler, server: Server, hand_over: HandOver, role: str
) -> None:
    """Give a server its link: prefill servers send over it, decode servers read over it."""
    assert isinstance(scheduler, VllmV1)
    link = scheduler.own(VllmV1Options).kv_transfer_link
    figures = link_figures(link, deployment, "kv_transfer_link")
    way = Way(int(figures.load_gb_per_s * 1e9), int(figures.latency_us * 1e6))
    block_bytes = deployment.block_bytes_per_gpu
    if role == "prefill":
        hand_over.sends(server, Link(way, way, block_bytes))
        return
    pull = Pull(way, block_bytes, hand_over.way_out)
    reads = Reads(server, pull, hand_over.told, lambda *_: None, NEVER_PS, scheduler.asynchronous)
    gpus = deployment.tensor_parallel_size * deployment.pipeline_parallel_size
    hand_over.decodes(reads, pull, gpus)
    scheduler.use(LowerTier(reads, scheduler.limits))
