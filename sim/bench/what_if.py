"""What if: the replayed server with other settings, as in block_size=32,tensor_parallel_size=4.

A KV cache whose size is known from the engine, not from the formula, grows and shrinks as the formula says:
a logged cache of 41,408 tokens where the formula has 40,000 becomes 1.0352 times what the formula has then.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvsim.sim.build import windowed_groups
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.options.option import Named, options_of
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.run import resolved
from kvsim.sim.scenario.memory import kv_capacity

GIVEN = ("num_gpu_blocks", "kv_tokens")


def parsed(text: str) -> dict[str, Any]:
    """The settings in a text.

    Raises
    ------
    KvsimError
        What is no NAME=VALUE, no setting of a server, or no value of it.
    """
    known = {each.name: each for each in options_of(Scenario)}
    found: dict[str, Any] = {}
    for pair in text.split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        name = name.removeprefix("--").replace("-", "_")
        if not (name and equals and value):
            raise KvsimError(f"what_if must be NAME=VALUE,..., as in block_size=32, got {text!r}")
        if name not in known:
            raise unknown("what_if: setting", name, list(known))
        found[name] = _value(known[name], value)
    return found


def changed(server: Scenario, changes: dict[str, Any]) -> Scenario:
    """The server with these settings, and a KV cache of the size that follows."""
    if any(name in changes for name in GIVEN):  # a size that was known before gives way to it
        return replace(server, **{**dict.fromkeys(GIVEN), **changes})
    found = replace(server, **changes)
    if not any(getattr(server, name) for name in GIVEN):
        return found
    before, after = (_formula(replace(each, kv_tokens=None, num_gpu_blocks=None)) for each in (server, found))
    known = _formula(server)
    if before == after:
        return replace(found, kv_tokens=known, num_gpu_blocks=None)
    return replace(found, kv_tokens=max(round(known * after / before), 1), num_gpu_blocks=None)


def in_words(changes: Mapping[str, Any]) -> str:
    """`block_size 32, tensor_parallel_size 4`."""
    return ", ".join(f"{name} {value}" for name, value in changes.items())


def _formula(server: Scenario) -> int:
    """Tokens of the KV cache."""
    scenario = resolved(server.deployed())
    return kv_capacity(scenario, windowed_groups(scenario)).tokens


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
