"""The class behind the name of a policy."""

from kvsim.sim.classes import class_named
from kvsim.sim.deployment.engine import POLICIES as ENGINES
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.policies import POLICIES
from kvsim.sim.policies.base import Policy


def policy_class(name: str) -> type[Policy]:
    """The class of a policy with keys, or of the user's own; `Policy` itself for an engine's own order."""
    if name in ENGINES:
        return Policy
    return class_named("policy", name, POLICIES, Policy)  # type: ignore[type-abstract]


def policy_of(config: EngineConfig, max_model_len: int) -> Policy | None:
    """The policy of an engine; None if it keeps its own order."""
    return None if config.policy in ENGINES else policy_class(config.policy)(config, max_model_len)
