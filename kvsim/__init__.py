"""kvsim: a discrete-event simulator of LLM-serving memory and scheduling.

    import kvsim

    run = kvsim.simulate(model="llama-3.1-8b", gpu="h100", request_rate=20)
    run.summary.latency.ttft_s.p99          # typed numbers
    run.requests                            # a pandas DataFrame, a row per request
    run.plot("memory")                      # a matplotlib Figure

    both = kvsim.compare(["contiguous", "paged"], request_rate=float("inf"))
    both.table                              # a row per run
    kvsim.load("runs/sharegpt-paged")       # a directory that the command `sim` wrote
    kvsim.sweep(gpu=["l40s", "h100"], request_rate="2:16:2")    # a row per run

The folders beside this file are links to those of the checkout's top level; an installed kvsim holds them as
plain packages. Names are imported on first use: `import kvsim` alone costs nothing.
"""

from typing import TYPE_CHECKING, Any

from kvsim.sim import __version__

if TYPE_CHECKING:
    from kvsim.allocators.base import Allocator
    from kvsim.api import check_allocator, check_scheduler, compare, load, simulate
    from kvsim.commands.capacity import capacity
    from kvsim.commands.fit import fit
    from kvsim.commands.replay import Replay, replay
    from kvsim.commands.sweep import sweep
    from kvsim.results import Comparison, Run
    from kvsim.sim.errors import KvsimError
    from kvsim.sim.models.spec import GpuSpec, ModelSpec
    from kvsim.sim.options.scenario import Scenario
    from kvsim.sim.options.traffic import Traffic
    from kvsim.sim.record.summary import Summary
    from kvsim.sim.schedulers.base import Scheduler

_WHERE = {
    "Allocator": "allocators.base",
    "Comparison": "results",
    "GpuSpec": "sim.models.spec",
    "KvsimError": "sim.errors",
    "ModelSpec": "sim.models.spec",
    "Replay": "commands.replay",
    "Run": "results",
    "Scenario": "sim.options.scenario",
    "Scheduler": "sim.schedulers.base",
    "Summary": "sim.record.summary",
    "Traffic": "sim.options.traffic",
    "capacity": "commands.capacity",
    "check_allocator": "api",
    "check_scheduler": "api",
    "compare": "api",
    "fit": "commands.fit",
    "load": "api",
    "replay": "commands.replay",
    "simulate": "api",
    "sweep": "commands.sweep",
}

__all__ = [
    "Allocator",
    "Comparison",
    "GpuSpec",
    "KvsimError",
    "ModelSpec",
    "Replay",
    "Run",
    "Scenario",
    "Scheduler",
    "Summary",
    "Traffic",
    "__version__",
    "capacity",
    "check_allocator",
    "check_scheduler",
    "compare",
    "fit",
    "load",
    "replay",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    from importlib import import_module

    if name in _WHERE:
        found = getattr(import_module(f"kvsim.{_WHERE[name]}"), name)
        if isinstance(found, type) and not found.__doc__:  # a compiled class
            from kvsim.sim.sources import class_doc

            found.__doc__ = class_doc(found)
        return found
    from difflib import get_close_matches

    near = get_close_matches(name, _WHERE, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f" (known: {', '.join(_WHERE)})"
    raise AttributeError(f"module 'kvsim' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE})
