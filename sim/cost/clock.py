"""The clock, i.e. the source of step times, and its error against measured real servers.

    clock_of(deployment) -> Clock: name, device, date, trust

    measured elsewhere    kernels that others measured on that GPU; these profiles ship
    calibrated            a profile of the user's own GPU
    roofline              the datasheet and the model's geometry
    constant 0.03 s       every step takes the same time
    logged 12.4 ms + ...  a running server's log
    published NAME        published figures, or a published simulator

Do not compare systems on clocks of different names: one may be 5 % off, the other 50 %. Trust holds the
errors that `sim validate` found for the same model, GPU, precision and clock (sim/measured/errors.csv,
written by `sim validate --table FILE`). Without such an entry a clock is not validated.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources

from kvsim.sim.cost import COSTS
from kvsim.sim.cost.logged import LOGGED, StepTimes
from kvsim.sim.cost.profile_files import REHEARSAL
from kvsim.sim.cost.trust import Trust, read_errors
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.models.spec import ModelSpec

NOT_VALIDATED = "not validated"
SHIPPED = resources.files("kvsim.sim.measured").joinpath("errors.csv")


@dataclass(frozen=True)
class Clock:
    """Where the step times of a deployment come from.

    Attributes
    ----------
    name : str
        Only clocks with the same name are comparable.
    profile, device, date : str or None
        The profile, the device measured and the date; None if nothing was measured.
    trust : Trust or None
        Errors for the same model, GPU, precision and clock.
    beside : str
        Anything else known about its error; "" if nothing.
    """

    name: str
    profile: str | None = None
    device: str | None = None
    date: str | None = None
    trust: Trust | None = None
    beside: str = ""

    @property
    def trust_words(self) -> str:
        """The error in words, or that it is unknown."""
        if self.trust is not None:
            return self.trust.words
        return f"{NOT_VALIDATED}{f'; {self.beside}' if self.beside else ''}"

    def as_json(self) -> dict[str, object]:
        """The entry `cost` in `summary.json`."""
        said = {} if self.trust is None else asdict(self.trust)
        trust = {name: value for name, value in said.items() if name not in ("cost", "model", "gpu")}
        return {
            "clock": self.name,
            "profile": self.profile,
            "device": self.device,
            "date": self.date,
            "trust": self.trust_words,
            "validated": trust or None,
        }


def clock_of(deployment: Deployment) -> Clock:
    """The clock of a deployment, with what is known about its error."""
    name, profile = _name(deployment), deployment.profile
    trust, beside = None, ""
    if deployment.time_scale == 1 and (profile is None or profile["kind"] == "elsewhere"):
        trust = _errors().get(_key(deployment.cost, deployment.model, deployment.gpu.name))
        beside = _other_precision(deployment)
    if profile is None:
        return Clock(name, trust=trust, beside=beside)
    if profile["composed_error"] is not None:
        beside = f"{100 * float(profile['composed_error']):.1f} % off on whole steps of its own GPU"
    date = str(profile["measured"]["date"])[:10]
    return Clock(name, str(profile["name"]), str(profile["device"]), date, trust, beside)


def precision_of(model: ModelSpec) -> str:
    """`bf16`, or the quantization of the weights."""
    return model.quantization or "bf16"


Key = tuple[str, str, str, str]


def _key(cost: str, model: ModelSpec, gpu: str) -> Key:
    return cost, model.name, gpu, precision_of(model)


@cache
def _errors() -> Mapping[Key, Trust]:
    """Errors found by `sim validate`, by cost, model, GPU and precision."""
    rows = read_errors(SHIPPED)
    return {(each.cost, each.model, each.gpu, each.precision): each for each in rows}


def _other_precision(deployment: Deployment) -> str:
    """The errors for the same model and GPU in other precisions, if known."""
    model = deployment.model
    wanted = deployment.cost, model.name, deployment.gpu.name
    others = [each for key, each in _errors().items() if key[:3] == wanted]
    return "; ".join(f"in {each.precision} {each.errors}" for each in others)


def _name(deployment: Deployment) -> str:
    """The clock's name."""
    cost, _, rest = deployment.cost.partition(":")
    kinds = {"measured-elsewhere": "measured elsewhere", "roofline": cost, "calibrated": cost}
    name = kinds.get(cost, f"published {cost}") if cost in COSTS else deployment.cost
    if cost == "constant":
        name = f"constant {rest} s"
    if cost == LOGGED:
        name = f"{LOGGED} {StepTimes.parsed(deployment.cost).words}"
    if deployment.profile is not None and deployment.profile["kind"] == "rehearsal":
        name = REHEARSAL
    return name if deployment.time_scale == 1 else f"{name} x {deployment.time_scale:.6g}"
