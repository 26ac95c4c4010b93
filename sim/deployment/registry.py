"""Allocators by name, built in or the user's own as `package.module:Class`, and their usual schedulers."""

from kvsim.allocators import ALLOCATORS
from kvsim.allocators.base import Allocator
from kvsim.sim.classes import class_named
from kvsim.sim.deployment.engine import RESERVES
from kvsim.sim.deployment.prediction import PREFIX
from kvsim.sim.errors import KvsimError


def allocator_class(name: str) -> type[Allocator]:
    """The allocator of that name: built in, or the user's own as `package.module:Class`."""
    head, _, rest = name.partition(":")
    try:
        return class_named("allocator", name, ALLOCATORS, Allocator)  # type: ignore[type-abstract]
    except KvsimError as error:
        if head not in ALLOCATORS or not rest:
            raise
        if not allocator_class(head).reserves:
            raise KvsimError(f"allocator {head} takes no reservation, got {rest!r}") from error
        raise KvsimError(
            f"reserve of allocator {head} must be one of {', '.join(RESERVES)}, {PREFIX}MODEL, got {rest!r}"
        ) from error


def usual_scheduler(allocator: str) -> str:
    """What engines pair with an allocator: vLLM above paging, else Orca, unless it names another."""
    found = allocator_class(allocator)
    return found.scheduler or ("vllm-v1" if found.pages else "orca")
