"""Allocators and schedulers are known by what they can do, never by their names."""

import ast
from pathlib import Path

import pytest
from support.cases import told
from support.settings import engine_config

from kvsim import sim, workloads
from kvsim.allocators.paged import Paged
from kvsim.allocators.radix import Radix
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.run import prepare

NAMES = {
    "paged",
    "radix",
    "dynamic",
    "buddy",
    "contiguous",
    "tgi",
    "mlc",
    "vllm-v0",
    "vllm-v1",
    "lightllm",
    "past-future",
    "tensorrt-llm",
    "nano-vllm",
    "orca",
    "s3",
    "static",
}


class MyPaged(Paged):
    """Paged, by another name."""


class MyRadix(Radix):
    """Radix, by another name."""


def scenario(model="opt-13b", gpu="a100-40gb", cost="roofline", **settings):
    engine = engine_config(**settings)
    return Deployment(
        model=model_named(model), gpu=gpu_named(gpu), engine=engine, cost=cost, num_gpu_blocks=300
    )


CASES = {
    "by default": {},
    "prefix cache": {"enable_prefix_caching": True},
    "vllm-v0": {"scheduler": "vllm-v0", "watermark": 0.01, "enable_chunked_prefill": False},
    "blocks of 32": {"block_size": 32, "cost": "a100-40gb-sosp23"},
    "sliding windows": {"model": "gemma-3-27b", "gpu": "h200"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_subclass_of_paged_behaves_exactly_as_paged_does(case):
    work = workloads.build("sharegpt", num_prompts=80, request_rate=6.0, burstiness=1.0, seed=3)
    found = []
    for name in ("paged", f"{__name__}:MyPaged"):
        settings = {"max_num_batched_tokens": 4096} | CASES[case]
        simulation = prepare(scenario(allocator=name, **settings), work, {})
        found.append(
            (told(simulation.engine.run()), simulation.capacity, simulation.deployment.engine.scheduler)
        )
    assert found[0] == found[1]


def test_the_scheduler_that_belongs_to_an_allocator_follows_from_what_it_can_do():
    names = {"paged": "vllm-v1", f"{__name__}:MyPaged": "vllm-v1", f"{__name__}:MyRadix": "vllm-v1"}
    names |= {"radix": "vllm-v1", "dynamic": "orca", "buddy": "orca", "contiguous": "orca"}
    assert {name: scenario(allocator=name).scheduler_name for name in names} == names


def test_no_code_compares_with_the_name_of_an_allocator_or_a_scheduler():
    found = []
    for path in Path(sim.__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in NAMES):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Compare):
                words = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
                found += [(path.name, node.lineno) for word in words if word in NAMES]
    assert found == []
