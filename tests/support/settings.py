"""Settings of an engine by keyword: those that a scheduler or an allocator declares go into its `options`."""

from dataclasses import fields

from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.options.scenario import Scenario


def engine_config(**settings):
    """The engine with these settings."""
    return EngineConfig.of(settings)


def with_settings(engine, **settings):
    """The same engine with these settings instead."""
    return EngineConfig.of({**vars(engine), **settings})


def server_with(**settings):
    """A server with these settings."""
    names = {each.name for each in fields(Scenario)}
    own = {name: value for name, value in settings.items() if name not in names}
    common = {name: value for name, value in settings.items() if name in names}
    return Scenario(**common, options=own)
