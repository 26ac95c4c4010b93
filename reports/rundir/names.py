"""The name of a run's directory: trace, allocator, and differences from the defaults.

sharegpt-paged    sharegpt-paged-rate4-seed3    azure-buddy-pow2-llama-3.1-8b-h100-prefix
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from kvsim.sim.build import build_scheduler, parts_of, server_defaults
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.registry import usual_scheduler
from kvsim.sim.deployment.vllm_defaults import Asked
from kvsim.sim.parts import defaults_of
from kvsim.sim.serving.fleet import FleetConfig

LONGEST = 100
_USUAL = {"model": "opt-13b", "gpu": "a100-40gb", "cost": "roofline"}
_WORDS = {
    "request_rate": "rate",
    "num_prompts": "prompts",
    "burstiness": "burst",
    "rate_scale": "scale",
    "input_len": "in-",
    "output_len": "out-",
    "shared_prefix": "shared",
    "clients_mix": "mix-",
    "beam_width": "beam",
    "beam_process": "",
    "arrivals": "",
    "think_time": "think",
    "turns": "turns-",
    "max_num_seqs": "seqs",
    "max_num_batched_tokens": "batched",
    "max_model_len": "len",
    "enable_chunked_prefill": "chunked",
    "enable_prefix_caching": "prefix",
    "async_scheduling": "async",
    "enforce_eager": "eager",
    "reserve_full_prompt": "full-prompt",
    "disable_hybrid_kv_cache_manager": "no-hybrid",
    "preemption": "",
    "policy": "",
    "num_cpu_blocks": "cpu",
    "block_size": "block",
    "gpu_memory_utilization": "util",
    "num_gpu_blocks": "blocks",
    "kv_tokens": "kv",
    "kv_cache_dtype": "kv-",
    "time_scale": "steps-x",
    "tensor_parallel_size": "tp",
    "router": "",
}
"""The abbreviation of an option, before its value; other options use their own names."""


def run_name(trace: str, label: str, deployment: Deployment, traffic: Mapping[str, object]) -> str:
    """The name of a run, at most about `LONGEST` characters: parts that do not fit are dropped.

    Parameters
    ----------
    label : str
        The allocator and its reservation, or `compare`.
    deployment : Deployment
        With its defaults filled in.
    traffic : mapping
        The differences from the trace's usual traffic.
    """
    name = f"{trace}-{label}"
    options = sorted(traffic.items(), key=lambda each: each[0] == "seed")  # the seed comes last
    if deployment.pools:
        of_server = [f"{pool.replicas}x{_plain(pool.name)}" for pool in deployment.pools]
        of_server += _of_fleet(deployment.fleet, ("seed", "replicas", "sticky"))
    else:
        of_server = [*_of_deployment(deployment), *_of_fleet(deployment.fleet)]
    for word in (*of_server, *(_word(*each) for each in options)):
        if word and len(name) + len(word) < LONGEST:
            name += f"-{word}"
    return name


def _of_deployment(deployment: Deployment) -> Iterator[str]:
    engine = deployment.engine
    if deployment.model.name != _USUAL["model"]:
        yield _plain(deployment.model.name)
    other_gpu = deployment.gpu.name != _USUAL["gpu"]
    if other_gpu:
        yield _plain(deployment.gpu.name)
    by_itself = other_gpu and deployment.cost in ("calibrated", "measured-elsewhere")
    if deployment.cost != _USUAL["cost"] and not by_itself:
        yield _plain(deployment.cost)
    undecided = replace(deployment, engine=replace(engine, async_scheduling=None))
    asked = Asked(max_model_len=engine.max_model_len)
    usual = {
        **server_defaults(
            engine.allocator, engine.scheduler, deployment.gpu, deployment.model, asked, deployment.classes
        ),
        "async_scheduling": build_scheduler(undecided).asynchronous,
    }
    if engine.scheduler not in (None, usual_scheduler(deployment.allocator)):
        yield _plain(str(engine.scheduler))
    for field in fields(EngineConfig):
        value = getattr(engine, field.name)
        if field.name in ("allocator", "reserve", "scheduler", "options"):
            continue
        if value is not None and value != usual.get(field.name, field.default):
            yield _word(field.name, value)
    declared = [defaults_of(found.declares) for _, found in parts_of(deployment).values()]
    for name, value in engine.options.items():
        if value is not None and value not in [each[name] for each in declared if name in each]:
            yield _word(name, value)
    kept = [each for each in fields(Deployment) if each.name in Deployment.recorded()]
    for field in kept:
        value = getattr(deployment, field.name)
        told = field.name in ("model", "gpu", "engine", "cost", "profile")
        if not told and value not in (None, usual.get(field.name, field.default)):
            yield _word(field.name, value)


def _of_fleet(fleet: FleetConfig, untold: Sequence[str] = ("seed",)) -> Iterator[str]:
    for field in fields(FleetConfig):
        value = getattr(fleet, field.name)
        if field.name not in untold and value != field.default:
            yield _word(field.name, value)


def _word(option: str, value: object) -> str:
    word = _WORDS.get(option, option.replace("_", ""))
    if isinstance(value, bool):
        return word if value else f"no-{word}"
    return word + _plain(f"{value:g}" if isinstance(value, float) else str(value))


def _plain(text: str) -> str:
    """The text without characters that are special to shells or file systems."""
    return re.sub(r"[^\w.+]+", "-", text).strip("-.")
