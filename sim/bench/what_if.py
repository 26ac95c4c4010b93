"""What if: the replayed server with other settings, as in block_size=32,scheduler=sglang, or another load.

With another scheduler or allocator, settings that the user did not give are dropped: vLLM's own defaults go
if the other has no use for them, and its own defaults apply.

A KV cache size that is known from the engine, not from the formula, scales with the formula: a logged cache
of 41,408 tokens where the formula has 40,000 becomes 1.0352 times the formula's new value.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from kvsim.allocators.option import declared_by
from kvsim.sim.bench.workload import LOAD, Load
from kvsim.sim.build import engine_defaults, resolve, scheduler_class
from kvsim.sim.classes import name_of
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.deployment.memory import kv_capacity
from kvsim.sim.deployment.registry import allocator_class
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.option import Named, listed, options_of
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.parts import declared_everywhere, known_options

SWITCHES = {"enable_prefix_caching", "async_scheduling"}
"""Settings of all servers that some schedulers do not use."""
GIVEN = ("num_gpu_blocks", "kv_tokens")


def parsed(text: str) -> dict[str, Any]:
    """The settings in a text, of the server and of the load.

    Raises
    ------
    KvsimError
        Not NAME=VALUE, not a setting of a server or a load, or not a value of it.
    """
    known = _known()
    found: dict[str, Any] = {}
    for pair in listed(text):
        name, equals, value = (part.strip() for part in pair.partition("="))
        name = name.removeprefix("--").replace("-", "_")
        if not (name and equals and value):
            raise KvsimError(f"what_if must be NAME=VALUE,..., as in block_size=32, got {text!r}")
        if name not in known:
            raise unknown("what_if: setting", name, list(known))
        found[name] = _value(known[name], value)
    return found


def split(changes: Mapping[str, Any]) -> tuple[dict[str, Any], Load]:
    """The server's settings, and the load.

    Raises
    ------
    KvsimError
        A setting of neither, or an impossible load.
    """
    for name in changes:
        if name not in _known():
            raise unknown("what_if: setting", name, list(_known()))
    server = {name: value for name, value in changes.items() if name not in LOAD}
    load = {name: value for name, value in changes.items() if name in LOAD}
    try:
        return server, Load(**load)
    except KvsimError as error:
        raise KvsimError(f"what_if: {error}") from error


def changed(server: Scenario, changes: dict[str, Any], asked: Scenario | None = None) -> Scenario:
    """The server with these settings, and the resulting KV cache size.

    Parameters
    ----------
    asked : Scenario or None
        The user's settings of the server; others are dropped if they no longer apply. None: all are.
    """
    if asked is not None and {"scheduler", "allocator"} & changes.keys():
        changes = _of_itself(server, changes, asked) | changes
        server = replace(server, options=_kept(server, changes, asked))
    if any(name in changes for name in GIVEN):  # this replaces a known size
        return server.with_settings({**dict.fromkeys(GIVEN), **changes})
    found = server.with_settings(changes)
    if not any(getattr(server, name) for name in GIVEN):
        return found
    before, after = (
        _formula(replace(each, kv_tokens=None, num_gpu_blocks=None, block_size=None))
        for each in (server, found)
    )
    known = _formula(server)
    if before == after:
        return replace(found, kv_tokens=known, num_gpu_blocks=None)
    return replace(found, kv_tokens=max(round(known * after / before), 1), num_gpu_blocks=None)


def _of_itself(server: Scenario, changes: Mapping[str, Any], asked: Scenario) -> dict[str, Any]:
    """Settings not given by the user that the new scheduler or allocator does not use, at their defaults."""
    usual = Scenario()
    names = {each.name for each in fields(Scenario)}
    own = {
        name
        for name in names
        if getattr(asked, name) == getattr(usual, name) and getattr(server, name) != getattr(usual, name)
    }
    if server.async_scheduling is False:  # the host is a property of the server
        own.discard("async_scheduling")
    if "allocator" in changes and not allocator_class(name_of(changes["allocator"])).has_blocks:
        return {name: getattr(usual, name) for name in own & {*SWITCHES, "scheduler"}}
    if "scheduler" not in changes:
        return {}
    name, longest = name_of(changes["scheduler"]), server.deployed().max_model_len
    its_own: dict[str, Any] = dict(engine_defaults(name, longest))
    left = own & its_own.keys()
    for switch in own & SWITCHES:
        try:
            scheduler_class(name)(EngineConfig(scheduler=name, **its_own | {switch: True}), longest)
        except KvsimError:
            left.add(switch)
    return {name: getattr(usual, name) for name in left}


def _kept(server: Scenario, changes: Mapping[str, Any], asked: Scenario) -> dict[str, object]:
    """The options to keep: of parts that stay, of the new parts, and those requested."""
    chosen = [name_of(changes["allocator"])] if "allocator" in changes else []
    known = {name for each in chosen for name in declared_by(allocator_class(each).declares)}
    if changes.get("scheduler") is not None:
        known |= set(declared_by(scheduler_class(name_of(changes["scheduler"])).declares))
    known |= {name for name, each in declared_everywhere().items() if each.kind in ("cost", "router")}
    return {name: value for name, value in server.options.items() if name in known or name in asked.options}


def _known() -> dict[str, Named]:
    """Every setting that can be changed."""
    load = {each.name: each for each in options_of(Traffic) if each.name in LOAD}
    return {**known_options(), **{each.name: each for each in options_of(Scenario)}, **load}


def in_words(changes: Mapping[str, Any]) -> str:
    """`block_size 32, tensor_parallel_size 4`."""
    return ", ".join(f"{name} {value}" for name, value in changes.items())


def _formula(server: Scenario) -> int:
    """Tokens of the KV cache."""
    found = resolve(server.deployed())
    return kv_capacity(found.deployment, found.kept.groups).tokens


def _value(named: Named, text: str) -> Any:  # noqa: ANN401 - of the setting's type
    if named.type is bool:
        words = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False}
        if text.lower() not in {*words, "0"}:
            raise KvsimError(f"what_if: {named.name} must be true or false, got {text!r}")
        return words.get(text.lower(), False)
    if named.optional and text.lower() == "none" and named.name != "quantization":
        return None
    try:
        return Path(text) if named.type is Path else named.type(text)
    except ValueError as error:
        kind = {int: "a whole number", float: "a number"}.get(named.type, "a value")
        raise KvsimError(f"what_if: {named.name} must be {kind}, got {text!r}") from error
