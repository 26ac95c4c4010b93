"""Classes by name: allocators, built in or the user's own as `package.module:Class`."""

from collections.abc import Callable
from typing import TypeVar

from kvsim.allocators import ALLOCATORS
from kvsim.allocators.base import Allocator
from kvsim.sim.classes import class_named
from kvsim.sim.deployment.engine import RESERVES
from kvsim.sim.deployment.prediction import PREFIX
from kvsim.sim.errors import KvsimError

T = TypeVar("T")


class Classes:
    """Classes by name, each looked up once; a deployment and everything built from it share one instance.

    It starts empty in another process, which looks names up again.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], type] = {}

    def __reduce__(self) -> tuple[type["Classes"], tuple[()]]:
        return Classes, ()

    def of(self, kind: str, name: str, find: Callable[[str], type[T]]) -> type[T]:
        """The class of a name, looked up by `find` on first use."""
        if (kind, name) not in self._found:
            self._found[kind, name] = find(name)
        return self._found[kind, name]

    def allocator(self, name: str) -> type[Allocator]:
        """The allocator of that name."""
        return self.of("allocator", name, allocator_class)


def usual_scheduler(allocator: type[Allocator]) -> str:
    """The scheduler that engines pair with an allocator: its own, else vLLM's for paging, else Orca."""
    return allocator.scheduler or ("vllm-v1" if allocator.pages else "orca")


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
