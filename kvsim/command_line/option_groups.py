"""The dataclasses whose fields are the options of commands, under the names in cli.py's annotations.

Each is imported when a command that has it is called: the list of commands needs none, and a run does not
need the options of a fit.
"""

from collections.abc import Sequence
from dataclasses import make_dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvsim.sim.option import Named, option, options_of

if TYPE_CHECKING:
    from kvsim.sim.bench.asked import ReplayOptions
    from kvsim.sim.fit.asked import FitOptions
    from kvsim.sim.options.goals import Goals
    from kvsim.sim.options.outputs import Output, Pictures, Seeds
    from kvsim.sim.options.scenario import Scenario
    from kvsim.sim.options.scenario import Scenario as ScenarioTexts
    from kvsim.sim.options.sweeps import Sought, Swept, Where
    from kvsim.sim.options.traffic import Traffic
    from kvsim.sim.options.traffic import Traffic as TrafficTexts

__all__ = [
    "FitOptions",
    "Goals",
    "Output",
    "Pictures",
    "ReplayOptions",
    "Scenario",
    "ScenarioTexts",
    "Seeds",
    "Sought",
    "Swept",
    "Traffic",
    "TrafficTexts",
    "Where",
]

LISTED = {False: ",...", True: ";..."}
"""How a list of values continues; `;` if the values themselves contain commas."""

_MODULES = {
    "FitOptions": "fit.asked",
    "Goals": "options.goals",
    "Output": "options.outputs",
    "Pictures": "options.outputs",
    "ReplayOptions": "bench.asked",
    "Scenario": "options.scenario",
    "Seeds": "options.outputs",
    "Sought": "options.sweeps",
    "Swept": "options.sweeps",
    "Traffic": "options.traffic",
    "Where": "options.sweeps",
}


@cache
def __getattr__(name: str) -> type:
    if name.endswith("Texts"):
        return texts_of(__getattr__(name.removesuffix("Texts")))
    if name not in _MODULES:
        raise AttributeError(f"there are no options {name}")
    found: type = getattr(import_module(f"kvsim.sim.{_MODULES[name]}"), name)
    return found


def with_parts(name: str, parts: Sequence[Named]) -> type:
    """The options of that name; a server's also has those of `parts`, which are None unless given."""
    if not parts or not name.startswith("Scenario"):
        return __getattr__(name)
    if name.endswith("Texts"):
        return texts_of(__getattr__("Scenario"), parts)
    added = [(each.name, each.type | None, _open(each, each.about.value)) for each in parts]
    return make_dataclass(name, added, bases=(__getattr__(name),), kw_only=True, frozen=True)


def texts_of(described: type, parts: Sequence[Named] = ()) -> type:
    """The options of a dataclass with strings as values, as a sweep takes them: reports/sweeps/values.py.

    A field per option, None if it is not given.
    """
    named = [*options_of(described), *parts]
    texts = [
        (each.name, str | None, _open(each, f"{each.about.value or 'on|off'}{LISTED[each.semicolons]}"))
        for each in named
    ]
    return make_dataclass(f"{described.__name__}Texts", texts, kw_only=True, frozen=True)


def _open(named: Named, value: str) -> Any:  # noqa: ANN401 - as `option`
    """The field of an option that is None unless it is given."""
    panel = named.about.panel or "Parts"
    about = named.about
    marks = {"repeats": about.repeats, "commas": about.commas}
    return option(about.help, panel=panel, default=None, value=value, shown=named.in_words, **marks)
