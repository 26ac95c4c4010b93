"""The dataclasses whose fields are the options of commands, as cli.py names them in its annotations.

Imported when a command is called that has them: the list of commands does without.
"""

from dataclasses import make_dataclass

from kvsim.sim.bench.asked import ReplayOptions
from kvsim.sim.fit.asked import FitOptions
from kvsim.sim.options.goals import Goals
from kvsim.sim.options.option import option, options_of
from kvsim.sim.options.outputs import Output, Seeds
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.options.sweeps import Sought, Swept, Where
from kvsim.sim.options.traffic import Traffic

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


TrafficTexts = texts_of(Traffic)
ScenarioTexts = texts_of(Scenario)
