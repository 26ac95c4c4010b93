"""Cost models by name; they give the times of a deployment's steps in whole picoseconds.

    constant:SECONDS     every step takes the same time: for tests, and to compare schedules step by step
    roofline             from the datasheet and the geometry, with stated efficiencies: sim/cost/roofline.py
    calibrated           from a profile measured on the user's GPU: sim/cost/calibrated/model.py
    measured-elsewhere   the same, from a shipped profile that others measured
    logged:MS+US+US      from a running server's log: sim/cost/logged.py
    NAME                 from published figures: sim/cost/published.py
    package.module:Class the user's own

Their interface is sim/cost/step_cost.py.
"""

from dataclasses import replace

from kvsim.sim.classes import class_named
from kvsim.sim.cost import COSTS
from kvsim.sim.cost.drafting import MOST_CAPTURED, MOST_ON_BLACKWELL, Drafting, captured
from kvsim.sim.cost.ranks import Ranks
from kvsim.sim.cost.scaled import Scaled
from kvsim.sim.cost.step_cost import CostModel
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.draft import of_draft_alone, speculation_of
from kvsim.sim.errors import KvsimError
from kvsim.sim.kv.blocks import compute_capability


def cost_class(text: str) -> type[CostModel]:
    """The class behind `name`, `name:argument` or `package.module:Class`."""
    name = text.partition(":")[0]
    return class_named("cost", name if name in COSTS else text, COSTS, CostModel)  # type: ignore[type-abstract]


def check_cost(found: type[CostModel], deployment: Deployment) -> None:
    """Raise KvsimError for ranks, stages, eager launches or data types that a cost does not support."""
    if deployment.batches > 1 and found.batches == "one":
        raise KvsimError(
            f"data_parallel_size and pipeline_parallel_size must be 1 for cost {deployment.cost}, "
            f"got {deployment.data_parallel_size} and {deployment.pipeline_parallel_size}"
        )
    if deployment.engine.enforce_eager and not found.launches:
        raise KvsimError(
            f"enforce_eager must be left out for cost {deployment.cost}, which knows no launches"
        )
    if found.sixteen_bits:
        model = deployment.served_model
        for name, bits, given in (
            ("quantization", model.weight_bits or 8 * model.dtype_bytes, model.quantization),
            ("kv_cache_dtype", 8 * (model.kv_dtype_bytes or model.dtype_bytes), deployment.kv_cache_dtype),
        ):
            if bits != 16:
                raise KvsimError(
                    f"{name} must be left out for cost {deployment.cost}, whose times are of 16 bits, "
                    f"got {given or f'{bits:g} bits'}"
                )


def cost_of(found: type[CostModel], deployment: Deployment) -> CostModel:
    """The cost model of a deployment, for its class: for all batches of a step, and scaled if requested."""
    check_cost(found, deployment)
    name, _, argument = deployment.cost.partition(":")
    argument = argument if name in COSTS else ""
    step = found.of(deployment, argument)
    speculation = speculation_of(deployment)
    if speculation is not None and found.drafts:
        draft, engine = of_draft_alone(deployment), deployment.engine
        most = MOST_ON_BLACKWELL if compute_capability(deployment.gpu) // 10 == 10 else MOST_CAPTURED
        sizes = captured(
            speculation.num_speculative_tokens, engine.max_num_seqs, engine.max_num_batched_tokens, most
        )
        step = Drafting(
            step,
            None if draft is None else found.of(draft, argument),
            speculation.method if draft is None else draft.model.name,
            () if engine.enforce_eager else sizes,
        )
    if deployment.batches > 1 and found.batches == "each":
        step = Ranks(step, deployment)
    return step if deployment.time_scale == 1 else Scaled(step, deployment.time_scale)


def cost_named(text: str, deployment: Deployment) -> CostModel:
    """The cost model of this name for a deployment."""
    return cost_of(cost_class(text), replace(deployment, cost=text))
