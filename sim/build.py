"""From a scenario and a workload to an engine: looks names up and puts the parts together.

result = build_engine(scenario, workload).run()
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TypeVar

from allocators import ALLOCATORS
from allocators.base import Allocator
from sim.config import Scenario
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


def build_allocator(scenario: Scenario) -> Allocator:
    """The allocator over the scenario's KV capacity."""
    engine = scenario.engine
    found = allocator_class(engine.allocator)
    if engine.reserve and not found.reserves:
        raise KvsimError(f"reserve must be left out for allocator {engine.allocator}, which reserves nothing")
    try:
        return found.from_options(kv_capacity(scenario).tokens, block_size=engine.block_size, fit=engine.fit)
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
    config, max_model_len = scenario.engine, scenario.max_model_len
    scheduler = _class_named(
        "scheduler",
        scheduler_name(scenario),
        SCHEDULERS,
        Scheduler,  # type: ignore[type-abstract]
    )
    return Engine(
        workload,
        Server(build_allocator(scenario), reservation(config.reserve or "max", max_model_len)),
        scheduler(config, max_model_len),
        cost_named(scenario.cost, scenario),
        max_model_len,
        max_span=max_span,
        step_log=step_log,
        check=check,
    )
