"""Pools of prefill and decode servers: the settings they allow, and the links between them."""

from collections.abc import Sequence

from kvsim.allocators.paged import Paged
from kvsim.allocators.sglang.cached import SglangCached
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.offloading import link_figures
from kvsim.sim.deployment.speculation import CONFIG, SHORT
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.kv_layers import EVERY_TOKEN
from kvsim.sim.schedulers.base import Scheduler
from kvsim.sim.schedulers.prompts_only import PromptsOnly
from kvsim.sim.schedulers.sglang import Sglang
from kvsim.sim.schedulers.sglang_answers import SglangAnswers
from kvsim.sim.schedulers.sglang_options import SglangOptions
from kvsim.sim.schedulers.sglang_prompts import SglangPrompts
from kvsim.sim.schedulers.vllm_options import VllmV1Options
from kvsim.sim.schedulers.vllm_v1 import VllmV1
from kvsim.sim.serving.decision import NEVER_PS
from kvsim.sim.serving.hand_over import HandOver
from kvsim.sim.serving.link import Link, Way
from kvsim.sim.serving.lower_tier import LowerTier
from kvsim.sim.serving.pulling import Pull, Pulls
from kvsim.sim.serving.pushing import Pushes
from kvsim.sim.serving.reading import Reads
from kvsim.sim.serving.server import Server
from kvsim.sim.workload import Workload

WITH = "with prefill and decode pools"
ALIKE = "the same in all pools " + WITH


def check_apart(whole: Deployment, schedulers: Sequence[Scheduler]) -> None:
    """Raise KvsimError for settings that prefill and decode pools do not allow."""
    first = whole.pools[0].server
    names = [pool.server.scheduler_name for pool in whole.pools]
    if any(type(each) is not type(schedulers[0]) for each in schedulers):
        raise KvsimError(f"scheduler must be {ALIKE}, got {' and '.join(dict.fromkeys(names))}")
    pushes = type(schedulers[0]) is Sglang
    for pool, scheduler in zip(whole.pools, schedulers, strict=True):
        server = pool.server
        if not pushes and not (type(scheduler) is VllmV1 and scheduler.version == "0.33.0"):
            raise KvsimError(
                f"scheduler must be vllm-v1@0.33.0 or sglang {WITH}, got {server.scheduler_name}"
            )
        wanted = SglangCached if pushes else Paged
        if server.allocator is not wanted:
            name = "sglang" if pushes else "paged"
            raise KvsimError(f"allocator must be {name} {WITH}, got {server.engine.allocator}")
        if any(layers.kind not in EVERY_TOKEN for layers in server.served_model.kv_layers):
            raise KvsimError(f"model must keep every token in all layers {WITH}, got {server.model.name}")
        if server.engine.policy != "fcfs":
            raise KvsimError(f"policy must be fcfs {WITH}, got {server.engine.policy!r}")
        _check_left_out(server)
        for name, mine, its in (
            ("block_size", server.engine.block_size, first.engine.block_size),
            ("max_model_len", server.max_model_len, first.max_model_len),
            ("kv_cache_dtype", server.kv_cache_dtype, first.kv_cache_dtype),
        ):
            if mine != its:
                raise KvsimError(f"{name} must be {ALIKE}, got {its} and {mine}")
    if pushes:
        _check_pushed(whole)


def _check_left_out(server: Deployment) -> None:
    """Raise KvsimError for what does not go with separate servers."""
    for name in (CONFIG, *SHORT, "kv_offloading_size", "tier", "enable_hierarchical_cache"):
        given = server.engine.options.get(name)
        if given not in (None, "0", 0, False):
            raise KvsimError(f"{name} must be left out {WITH}, got {given!r}")


def _check_pushed(whole: Deployment) -> None:
    """Raise KvsimError for what only goes with prompts that are pulled."""
    for name in ("direct_decode", "mixed_pool", "fail"):
        if given := getattr(whole.fleet, name):
            raise KvsimError(f"{name} must be left out {WITH} of scheduler sglang, got {given!r}")


def check_work(work: Workload) -> None:
    """Raise KvsimError for requests that cannot be handed over."""
    if work.samples is not None or work.beam is not None:
        raise KvsimError(f"requests must have one answer each {WITH}, got samples or beams")


def hand_over_of(whole: Deployment, scheduler: Scheduler) -> HandOver:
    """How prompts get from one side to the other: as the engine of these servers does it."""
    fleet = whole.fleet
    return Pushes() if type(scheduler) is Sglang else Pulls(fleet.direct_decode, fleet.mixed_pool)


def scheduler_of(config: EngineConfig, max_model_len: int, hand_over: HandOver, role: str) -> Scheduler:
    """The scheduler of a server of this role."""
    if isinstance(hand_over, Pushes):
        found = SglangPrompts if role == "prefill" else SglangAnswers
        return found(config, max_model_len, hand_over)
    assert isinstance(hand_over, Pulls)
    if role == "prefill":
        return PromptsOnly(config, max_model_len, hand_over)
    return VllmV1(config, max_model_len)


def connect(
    deployment: Deployment, scheduler: Scheduler, server: Server, hand_over: HandOver, role: str
) -> None:
    """Give a server its link: prefill servers send over it, decode servers get what others computed."""
    if isinstance(scheduler, VllmV1):
        link = scheduler.own(VllmV1Options).kv_transfer_link
    else:
        link = scheduler.own(SglangOptions).kv_transfer_link
    way = _way(link, deployment, "kv_transfer_link")
    block_bytes = deployment.block_bytes_per_gpu
    if role == "prefill":
        hand_over.sends(server, Link(way, way, block_bytes))
        return
    gpus = deployment.tensor_parallel_size * deployment.pipeline_parallel_size
    if isinstance(hand_over, Pushes):
        assert isinstance(scheduler, SglangAnswers)
        hand_over.decodes(server, Link(way, way, block_bytes), gpus)
        scheduler.copies_over(_way("pcie", deployment, "hicache_link"), block_bytes)
        return
    assert isinstance(hand_over, Pulls) and isinstance(scheduler, VllmV1)
    pull = Pull(way, block_bytes, hand_over.way_out)
    reads = Reads(server, pull, hand_over.told, lambda *_: None, NEVER_PS, scheduler.asynchronous)
    hand_over.decodes(reads, pull, gpus)
    scheduler.use(LowerTier(reads, scheduler.limits))


def _way(link: str, deployment: Deployment, option: str) -> Way:
    figures = link_figures(link, deployment, option)
    return Way(int(figures.load_gb_per_s * 1e9), int(figures.latency_us * 1e6))
