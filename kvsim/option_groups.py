"""The dataclasses whose fields are the options of commands, as cli.py names them in its annotations.

Each is imported when a command is called that has it: the list of commands does without, and so does a run
without the options of a fit.
"""

from dataclasses import make_dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from kvsim.sim.options.option import option, options_of

if TYPE_CHECKING:
    from kvsim.sim.bench.asked import ReplayOptions
    from kvsim.sim.fit.asked import FitOptions
    from kvsim.sim.options.goals import Goals
    from kvsim.sim.options.outputs import Output, Seeds
    from kvsim.sim.options.scenario import Scenario
    from kvsim.sim.options.scenario import Scenario as ScenarioTexts
    from kvsim.sim.options.sweeps import Sought, Swept, Where
    from kvsim.sim.options.traffic import Traffic
    from kvsim.sim.options.traffic import Traffic as TrafficTexts

__all__ = [
    "FitOptions",
    "Goals",
    "Output",
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

_MODULES = {
    "FitOptions": "fit.asked",
    "Goals": "options.goals",
    "Output": "options.outputs",
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


def texts_of(described: type) -> type:
    """The options of a dataclass with texts for values: what a sweep takes, see reports/sweeps/values.py.

    A field per option, None where nothing is said.
    """
    parts = []
    for each in options_of(described):
        about = each.about
        value = f"{about.value or 'on|off'},..."
        parts.append(
            (
                each.name,
                str | None,
                option(about.help, panel=about.panel, default=None, value=value, shown=each.in_words),
            )
        )
    return make_dataclass(f"{described.__name__}Texts", parts, kw_only=True, frozen=True)
