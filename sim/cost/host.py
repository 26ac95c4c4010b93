"""What an engine's host adds to the GPU's time in every step.

    step, synchronous    GPU + host          the host schedules, launches and samples while the GPU waits
    step, asynchronous   max(GPU, host)      it does this for the next step while the GPU computes this one
    host                 base + per sequence x sequences (prompts and decoding) of the step

Work done once per request is in sim/cost/frontend.py.
The constants are vLLM V1's, fitted to measured servers (docs/truth.md lists them with their errors). Those of
other engines are unknown: all engines use these, and every result says so. Thus schedulers and allocators are
compared on one clock. The scheduler decides whether the host overlaps the GPU (`Scheduler.hides_host`). The
constants apply to measured GPU times; the roofline and published figures use them only on request.
"""

from dataclasses import dataclass, replace
from math import isfinite

from kvsim.allocators.option import option
from kvsim.sim.cost.logged import LOGGED
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.errors import KvsimError
from kvsim.sim.option import taken

AUTO, NONE = "auto", "none"
MEASURED = ("calibrated", "measured-elsewhere")
"""Costs with measured GPU times, to which host time is added."""
MOST_S = 60.0


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """Options of costs that model the host."""

    host_time: str = option(
        "The host's ms per step + us per sequence; auto: the engine's, with measured GPU times.",
        default=AUTO,
        value="auto|none|MS+US",
        doc="[the host's time](cost.md#the-host) per step: milliseconds, and microseconds per sequence; "
        "`auto`: the engine's, if the GPU's times are measured",
    )


@dataclass(frozen=True)
class Host:
    """The host's time per step, in seconds.

    Attributes
    ----------
    overlapped : bool
        Whether it overlaps the GPU (asynchronous scheduling); otherwise the GPU waits for it.
    """

    base_s: float
    per_sequence_s: float
    overlapped: bool = False

    def seconds(self, sequences: int) -> float:
        """For a step with `sequences` sequences."""
        return self.base_s + sequences * self.per_sequence_s


MEASURED_ENGINE = "vllm-v1"
"""The engine to which host and front end were fitted; they stand in for those of all others."""
USUAL = Host(1.15e-3, 48e-6)
PLAIN_PROMPTS = ("vllm-v0", "nano-vllm")
"""Engines whose sources launch steps with prompts kernel by kernel, and decode attention separately. Others
are assumed to have piecewise graphs and one attention launch for both, as vLLM V1 has."""


def measured(cost: str) -> bool:
    """Whether step times were measured, on a GPU or a server; these costs include a front end."""
    return cost in MEASURED or cost.startswith(f"{LOGGED}:")


def engine_of(deployment: Deployment) -> str:
    """The scheduler's name without its release."""
    return deployment.scheduler_name.partition("@")[0]


def stand_in(deployment: Deployment) -> str:
    """In words, which engine's host and front end stand in for this engine's; empty if they are its own."""
    engine = engine_of(deployment)
    return "" if engine == MEASURED_ENGINE else f" ({MEASURED_ENGINE}'s, as {engine}'s is not known)"


def host_of(deployment: Deployment) -> Host | None:
    """The host of a deployment; None if it takes no time."""
    text = taken(HostOptions, deployment.options).host_time
    overlapped = bool(deployment.engine.async_scheduling)
    if text == AUTO:
        return replace(USUAL, overlapped=overlapped) if deployment.cost in MEASURED else None
    if text == NONE:
        return None
    base, _, more = text.partition("+")
    try:
        numbers = float(base), float(more or 0)
    except ValueError:
        numbers = (-1.0, -1.0)
    if not all(isfinite(number) and 0 <= number <= MOST_S * 1e6 for number in numbers):
        raise KvsimError(
            f"host_time must be auto, none, or ms and us per sequence as in 0.8+41, got {text!r}"
        )
    return Host(numbers[0] / 1e3, numbers[1] / 1e6, overlapped)


def host_words(deployment: Deployment) -> str:
    """The host in words; empty if there is none."""
    host = host_of(deployment)
    if host is None:
        return ""
    how = "hidden behind the GPU" if host.overlapped else "added"
    whose = stand_in(deployment) if taken(HostOptions, deployment.options).host_time == AUTO else ""
    return f"host {1e3 * host.base_s:g} ms + {1e6 * host.per_sequence_s:g} us per sequence{whose}, {how}"
