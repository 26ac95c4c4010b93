"""A scheduler tried against its contract, as a table of the rules that it keeps."""

from rich.table import Table

from kvsim.reports.listing import table_of
from kvsim.sim import contract
from kvsim.sim.errors import KvsimError
from kvsim.sim.registry import class_named
from kvsim.sim.schedulers import SCHEDULERS
from kvsim.sim.schedulers.base import Scheduler


def check_scheduler_named(name: str, seed: int, workloads: int) -> tuple[Table, str]:
    """Try the scheduler of that name; the table of rules and a remark, or KvsimError for a broken one."""
    if workloads < 1:
        raise KvsimError(f"workloads must be at least 1, got {workloads}")
    base, _, version = name.partition("@")
    found = class_named("scheduler", base, SCHEDULERS, Scheduler)  # type: ignore[type-abstract]
    try:
        contract.check_scheduler(found, seed, workloads, version)
    except contract.InvariantError as error:
        raise KvsimError(f"scheduler {name} breaks a rule: {error}") from error
    rules = [(rule.replace("_", " "), text) for rule, text in contract.RULES.items()]
    remark = f"All of them hold: {workloads:,} random workloads, each served in spans and step by step."
    return table_of(("rule", "what it says"), rules), remark
