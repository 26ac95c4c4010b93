"""The options of a run as tables for the docs, generated from their declarations (sim/option.py).

`python -m kvsim.reports.options docs/commands.md` regenerates them between the page's markers.
"""

import re
from collections.abc import Mapping

from kvsim.reports.pages import rewrite
from kvsim.sim.option import Named, options_of
from kvsim.sim.options.goals import Goals
from kvsim.sim.options.outputs import Output, Seeds
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.options.sweeps import Sought, Swept, Where
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.parts import Declared, declared_everywhere, part_named
from kvsim.sim.schedulers import SCHEDULERS

GROUPS = (Traffic, Seeds, Scenario, Goals, Swept, Where, Sought, Output)
PARTS = "Parts"
"""The name for options that only some schedulers and allocators have."""
LONGEST = 2048
"""The longest sequence for which length-dependent defaults are listed."""


def option_rows(panel: str) -> list[str]:
    """The rows of a panel: option, default, meaning."""
    if panel == PARTS:
        return [_row(each.named, each) for each in declared_everywhere().values()]
    described = (each for group in GROUPS for each in options_of(group))
    rows = {each.name: _row(each) for each in described if each.about.panel == panel}
    return list(rows.values())


def _row(named: Named, declared: Declared | None = None) -> str:
    about = named.about
    value = f" {about.value}".replace("|", "\\|") if about.value else ""
    names = [f"`{named.flag}{value}`"]
    names += [f"`{name}`" for name in (about.short, *about.also) if name]
    if named.type is bool and named.optional:
        names.append(f"`--no-{named.flag[2:]}`")
    of = f"{', '.join(f'`{name}`' for name in declared.parts)}: " if declared else ""
    meaning = about.doc or _plain(about.help)
    return f"| {', '.join(names)} | {'; '.join(_defaults(named, declared))} | {of}{meaning} |"


def _defaults(named: Named, declared: Declared | None) -> list[str]:
    """The common default, then the schedulers with a different one."""
    if declared:
        found: dict[str, list[str]] = {}
        for part in declared.parts:
            options = options_of(part_named(declared.kind, part).declares)
            own = next(each for each in options if each.name == named.name)
            found.setdefault(own.in_words, []).append(f"`{part}`")
        return [f"{', '.join(who)} {value}" if len(found) > 1 else value for value, who in found.items()]
    usual = named.in_words
    common = f"`{usual}`" if named.type is str and usual and not named.about.shown else usual
    return [common, *(f"`{who}` {value}" for who, value in _others(named.name).items())]


def _others(name: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for scheduler in SCHEDULERS:
        chosen = part_named("scheduler", scheduler)
        newest = chosen.defaults("", LONGEST).get(name)
        for release in ("", *chosen.VERSIONS):
            value = chosen.defaults(release, LONGEST).get(name)
            if value is not None and (not release or value != newest):
                shown = ("off", "on")[value] if isinstance(value, bool) else str(value)
                found[f"{scheduler}@{release}" if release else scheduler] = shown
    return found


def _plain(sentence: str) -> str:
    """A sentence of the help, formatted as a table cell."""
    plain = sentence[1:2].islower() or sentence.startswith("A ")  # but not `KV`, `N clients`
    return (sentence[:1].lower() if plain else sentence[:1]) + sentence[1:].removesuffix(".")


def with_tables(page: str) -> str:
    """The page with the text between `<!-- options: PANEL -->` and `<!-- end -->` regenerated."""

    def table(found: re.Match[str]) -> str:
        rows = "\n".join(["| option | default | meaning |", "|---|---|---|", *option_rows(found[2])])
        return f"{found[1]}\n{rows}\n{found[3]}"

    return re.sub(r"(<!-- options: ([\w ]+) -->)\n.*?(<!-- end -->)", table, page, flags=re.DOTALL)


if __name__ == "__main__":
    rewrite(with_tables)
