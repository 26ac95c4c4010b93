"""Copies over a link between a GPU and its host: GB/s one way, or both ways at once."""

from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.offloading import link_of
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.workload import PS_PER_S

GB = 1e9


def copies(*, model: str, gpu: str, link: str, blocks: int, ways: int) -> dict[str, float | None]:
    """The rate of a job of this many blocks in one direction, or in each of two; until the later one ends."""
    where = Deployment(model=model_named(model), gpu=gpu_named(gpu), engine=EngineConfig())
    block_bytes = where.engine.block_size * where.model.kv_bytes_per_token
    copying = link_of(link, where, "link", block_bytes)
    ends_ps = max(copying.copied_ps(loads, blocks, 0) for loads in (True, False)[:ways])
    return {"rate": ways * blocks * block_bytes / GB / (ends_ps / PS_PER_S)}
