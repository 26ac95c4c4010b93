"""From a scenario and a workload to an engine: looks names up and puts the parts together.

result = build_engine(scenario, workload).run()
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import TypeVar

from allocators import ALLOCATORS
from allocators.base import Allocator, Options
from sim.config import EngineConfig, Scenario
from sim.cost import cost_named
from sim.engine import Engine
from sim.errors import KvsimError, unknown
from sim.memory import kv_capacity
from sim.reservation import reservation
from sim.schedulers import SCHEDULERS
from sim.schedulers.base import Scheduler
from sim.server import Server
from sim.workload import Workload

T = TypeVar("T")


def _class_named(field: str, name: str, table: Mapping[str, str], base: type[T]) -> type[T]:
    """The class behind a name of the table or behind `package.module:Class`."""
    if name not in table and ":" not in name:
        raise unknown(field, name, list(table))
    module, _, attribute = table.get(name, name).partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise KvsimError(f"{field} {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise KvsimError(f"{field} {name!r} must be a subclass of {base.__module__}.{base.__name__}")
    return found


def allocator_class(name: str) -> type[Allocator]:
    """The allocator of that name: built in, or the user's own as `package.module:Class`."""
    return _class_named("allocator", name, ALLOCATORS, Allocator)  # type: ignore[type-abstract]


def scheduler_name(scenario: Scenario) -> str:
    """The scheduler asked for; else what engines pair with the allocator: vLLM with paging, Orca below it."""
    engine = scenario.engine
    return engine.scheduler or ("vllm-v1" if engine.allocator == "paged" else "orca")


def build_scheduler(scenario: Scenario) -> Scheduler:
    """The scheduler, in the release asked for."""
    name = scheduler_name(scenario)
    base = name if ":" in name else name.partition("@")[0]
    found = _class_named("scheduler", base, SCHEDULERS, Scheduler)  # type: ignore[type-abstract]
    return found(replace(scenario.engine, scheduler=name), scenario.max_model_len)


def build_allocator(scenario: Scenario, freed_first: bool = True) -> Allocator:
    """The allocator over the scenario's KV capacity."""
    engine = scenario.engine
    found = allocator_class(engine.allocator)
    if engine.reserve and not found.reserves:
        raise KvsimError(f"reserve must be left out for allocator {engine.allocator}, which reserves nothing")
    if engine.fit != EngineConfig.fit and not found.chooses_extents:
        raise KvsimError(
            f"fit must be left out for allocator {engine.allocator}, which has no extents to choose"
        )
    options = Options(engine.block_size, engine.fit, freed_first)
    try:
        return found.from_options(kv_capacity(scenario).tokens, options)
    except ValueError as error:
        raise KvsimError(f"allocator {engine.allocator}: {error}") from error


def build_engine(
    scenario: Scenario,
    workload: Workload,
    *,
    max_span: int = 1 << 20,
    step_log: bool = False,
    check: bool = False,
) -> Engine:
    """The engine of a scenario, ready to run the workload once."""
    scheduler = build_scheduler(scenario)
    allocator = build_allocator(scenario, scheduler.freed_first)
    max_model_len = scenario.max_model_len
    return Engine(
        workload,
        Server(allocator, reservation(scenario.engine.reserve or "max", max_model_len)),
        scheduler,
        cost_named(scenario.cost, scenario),
        max_model_len,
        max_span=max_span,
        step_log=step_log,
        check=check,
    )
