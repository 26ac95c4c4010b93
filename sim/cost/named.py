"""How long an engine step takes, in whole picoseconds: the models by their names.

    constant:SECONDS     every step alike: for tests, and for comparing schedules step by step
    roofline             from the datasheet and the geometry, with stated efficiencies: sim/cost/roofline.py
    calibrated           from a profile measured on the user's GPU: sim/cost/calibrated/model.py
    measured-elsewhere   the same from a profile that ships, which somebody else measured
    logged:MS+US+US      from a running server's log: sim/cost/logged.py
    NAME                 from published figures: sim/cost/published.py

What the engine asks them is in sim/cost/step_cost.py.
"""

from collections.abc import Sequence
from math import isfinite

from kvsim.sim.cost.host import host_of
from kvsim.sim.cost.logged import LOGGED, Logged, StepTimes
from kvsim.sim.cost.published import AnalyticProfile, profile_names
from kvsim.sim.cost.ranks import Ranks
from kvsim.sim.cost.roofline import Roofline
from kvsim.sim.cost.scaled import Scaled
from kvsim.sim.cost.step_cost import CostModel, StepShape
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.workload import PS_PER_S

LONGEST_STEP_S = 86_400


class Constant(CostModel):
    """Every step takes the same time, whatever its shape."""

    def __init__(self, seconds: float) -> None:
        if not (isfinite(seconds) and 0 < seconds <= LONGEST_STEP_S) or round(seconds * PS_PER_S) < 1:
            raise KvsimError(
                f"cost constant must be at least 1e-12 s (1 ps) and at most {LONGEST_STEP_S} s, got {seconds}"
            )
        self.source = f"constant {seconds:g} s"
        self._ps = round(seconds * PS_PER_S)

    def step_ps(self, shape: StepShape) -> int:
        """The constant."""
        return self._ps

    def span_ps(self, decode_seqs: int, context_tokens: int, steps: int) -> Sequence[int]:
        """The constant, `steps` times."""
        return [self._ps] * steps


def cost_named(text: str, deployment: Deployment) -> CostModel:
    """The cost model of that name, its times multiplied where the deployment says so."""
    found = _named(text, deployment)
    return found if deployment.time_scale == 1 else Scaled(found, deployment.time_scale)


def _named(text: str, deployment: Deployment) -> CostModel:
    """The cost model of that name: `roofline`, `calibrated`, ... or an analytic profile."""
    batch = _of_a_batch(text, deployment)
    return batch if deployment.batches == 1 or isinstance(batch, Constant) else Ranks(batch, deployment)


def _of_a_batch(text: str, deployment: Deployment) -> CostModel:
    """What one batch takes; there may be several at once."""
    name, _, rest = text.partition(":")
    host_of(deployment)  # may refuse a host that this cost has no place for
    if name == "constant":
        try:
            seconds = float(rest)
        except ValueError:
            raise KvsimError(f"cost constant needs seconds, as in constant:0.03, got {text!r}") from None
        return Constant(seconds)
    if name == LOGGED:
        return Logged(StepTimes.parsed(text))
    if text == "roofline":
        return Roofline(
            deployment.served_model,
            deployment.gpu,
            deployment.tensor_parallel_size,
            ranks=deployment.data_parallel_size,
            host=host_of(deployment),
            expert_skew=deployment.expert_skew or 0.0,
        )
    if text in ("calibrated", "measured-elsewhere"):
        from kvsim.sim.cost.calibrated.model import Calibrated  # late: a roofline does without

        return Calibrated(deployment)
    if name in profile_names():
        return AnalyticProfile(name, rest, deployment)
    raise unknown(
        "cost",
        text,
        [
            "roofline",
            "calibrated",
            "measured-elsewhere",
            "constant:SECONDS",
            "logged:MS+US+US",
            *profile_names(),
        ],
    )
