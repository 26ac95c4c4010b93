"""Settings by keyword: settings that a scheduler, allocator or cost declares go into `options`."""

from dataclasses import fields

from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.options.scenario import Scenario


def engine_config(**settings):
    """The engine with these settings."""
    return EngineConfig.of(settings)


def deployed(engine=None, **settings):
    """The deployment with these settings; settings that a part declares go into its options."""
    names = {each.name for each in fields(Deployment)}
    own = {name: value for name, value in settings.items() if name not in names}
    common = {name: value for name, value in settings.items() if name in names}
    return Deployment(engine=with_settings(engine or EngineConfig(), **own), **common)


def redeployed(where, **settings):
    """The same deployment with these settings changed."""
    return deployed(**{each.name: getattr(where, each.name) for each in fields(where)} | settings)


def with_settings(engine, **settings):
    """The same engine with these settings changed."""
    return EngineConfig.of({**vars(engine), **settings})


def server_with(**settings):
    """A server with these settings."""
    names = {each.name for each in fields(Scenario)}
    own = {name: value for name, value in settings.items() if name not in names}
    common = {name: value for name, value in settings.items() if name in names}
    return Scenario(**common, options=own)
