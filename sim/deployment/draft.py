"""The draft of a deployment, as a model on the same GPUs.

Deployment --options--> Speculation --model--> Draft --> Deployment of the draft alone, for its cost
"""

import json
from collections.abc import Mapping
from dataclasses import replace

from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.speculation import CONFIG, SHORT, Speculation
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import model_named
from kvsim.sim.models.draft import Draft, eagle_of, model_draft, mtp_of
from kvsim.sim.models.spec import ModelSpec


def speculation_of(deployment: Deployment) -> Speculation | None:
    """How a deployment speculates; None if it does not."""
    return Speculation.of_options(deployment.options)


def without_speculation(options: Mapping[str, object]) -> dict[str, object]:
    """An engine's options without those of speculation."""
    return {name: value for name, value in options.items() if name != CONFIG and name not in SHORT}


def draft_for(speculation: Speculation | None, model: ModelSpec) -> Draft | None:
    """The draft that proposes tokens to a model; None if it takes neither memory nor GPU time."""
    if speculation is None or speculation.kind.startswith("ngram"):
        return None
    if speculation.kind == "draft_model":
        draft = model_named(speculation.model or "")
        if draft.vocab_size != model.vocab_size:
            raise KvsimError(
                f"speculative model {draft.name} must have the {model.vocab_size:,} tokens of {model.name}'s "
                f"vocabulary, got {draft.vocab_size:,}"
            )
        return model_draft(draft)
    if speculation.kind == "mtp":
        if not modules_of(speculation, model):
            raise KvsimError(
                f"method mtp needs a model with MTP modules, which {model.name} has not (or say "
                "num_nextn_predict_layers)"
            )
        return mtp_of(model, modules_of(speculation, model))
    return eagle_of(model, third=speculation.method == "eagle3")


def modules_of(speculation: Speculation, model: ModelSpec) -> int:
    """Number of MTP modules: the given number, else the model's own."""
    return speculation.num_nextn_predict_layers or model.mtp_modules


def with_modules(deployment: Deployment) -> Deployment:
    """The deployment with its number of MTP modules filled in, on which scheduling depends."""
    speculation = speculation_of(deployment)
    if speculation is None or speculation.kind != "mtp" or speculation.num_nextn_predict_layers:
        return deployment
    said = json.loads(str(deployment.options.get(CONFIG) or "{}"))
    said["num_nextn_predict_layers"] = modules_of(speculation, deployment.model)
    options = {**deployment.options, CONFIG: json.dumps(said)}
    return replace(deployment, engine=replace(deployment.engine, options=options))


def draft_of(deployment: Deployment) -> Draft | None:
    """The draft of a deployment."""
    return draft_for(speculation_of(deployment), deployment.model)


def of_draft_alone(deployment: Deployment) -> Deployment | None:
    """The draft as a deployment of its own on the same GPUs, without host time; None without a draft."""
    draft = draft_of(deployment)
    if draft is None:
        return None
    options = without_speculation(deployment.options)
    return replace(
        deployment,
        model=draft.model,
        engine=replace(deployment.engine, options={**options, "host_time": "none"}),
        data_parallel_size=1,
        pipeline_parallel_size=1,
        enable_expert_parallel=deployment.enable_expert_parallel and draft.model.experts > 0,
    )
