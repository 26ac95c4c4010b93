"""Commands whose options are the fields of dataclasses, as typer understands them.

    @flat
    def run(traffic: Traffic, server: Scenario = Scenario()) -> None: ...

gives a command with an option for every field that sim/options/option.py describes.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import is_dataclass, make_dataclass
from typing import Annotated, Any

import typer

from kvsim.sim.errors import KvsimError
from kvsim.sim.options.option import Named, option, options_of
from kvsim.sim.options.outputs import MAP_INSTANTS
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.options.traffic import Traffic

SWEEPING = ("sweep", "capacity")
"""Commands whose options take lists and ranges."""


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """The command with every parameter that is a dataclass replaced by its fields, as options.

    A parameter of the command's own takes the place of a field of that name.
    """
    parameters = inspect.signature(command).parameters
    groups = {name: p.annotation for name, p in parameters.items() if is_dataclass(p.annotation)}
    own = parameters.keys() - groups.keys()
    flattened = {name: _options(group, own) for name, group in groups.items()}

    def flattened_command(**values: Any) -> None:  # noqa: ANN401 - whatever the options hold
        for name, group in groups.items():
            given = {option.name: values.pop(option.name) for option in flattened[name]}
            values[name] = group(**_chosen(group, given))
        command(**values)

    options: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        options += flattened.get(name) or [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    found: Any = flattened_command
    found.__name__, found.__doc__ = command.__name__, command.__doc__
    found.__annotations__ = {option.name: option.annotation for option in options}
    found.__signature__ = inspect.Signature(options)
    return flattened_command


def completed(argv: Sequence[str]) -> list[str]:
    """The command line with the number that `--record-map` may leave out, long names made short."""
    if argv and argv[0] in SWEEPING:
        return with_values(argv)
    short = {each.flag: each.about.short for each in options_of(Scenario) if each.about.short}
    return [
        f"{word}={MAP_INSTANTS}"
        if word == "--record-map" and not following.isdigit()
        else "".join((short.get(name, name), equals, value))
        for word, following in zip(argv, [*argv[1:], ""], strict=True)
        for name, equals, value in [word.partition("=")]
    ]


def given(ctx: typer.Context, free: Collection[str] = ()) -> list[str]:
    """The options of a command line, but for those that are free."""
    sources = {name: getattr(ctx.get_parameter_source(name), "name", "") for name in ctx.params}
    found = [name for name, source in sources.items() if source == "COMMANDLINE" and name not in free]
    return [f"--{name.replace('_', '-')}" for name in found]


def names_of(groups: Collection[type]) -> set[str]:
    """The names of all options of dataclasses."""
    return {each.name for group in groups for each in options_of(group)}


def _options(group: type, besides: Collection[str]) -> list[inspect.Parameter]:
    """The described fields of a dataclass as parameters."""
    found: list[inspect.Parameter] = []
    for each in options_of(group):
        if each.name not in besides:
            found += _parameters(each)
    return found


def _parameters(named: Named) -> list[inspect.Parameter]:
    """One option; one that is on, off or open has a second, hidden name for off."""
    about = named.about
    names = (
        [about.short or named.flag, *about.also] if named.type is bool or about.also or about.short else []
    )
    declared = typer.Option(
        *names,
        help=about.help,
        rich_help_panel=about.panel,
        metavar=about.value or None,
        show_default=about.shown or True,
        hidden=about.hidden,
    )
    kind = named.type | None if named.optional else named.type
    found = [_parameter(named.name, named.default, Annotated[kind, declared])]
    if named.type is bool and named.optional:
        off = typer.Option(f"--no-{named.flag[2:]}", hidden=True)
        found.append(_parameter(f"no_{named.name}", False, Annotated[bool, off]))
    return found


def _parameter(name: str, default: object, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _chosen(group: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options, with the second name for off folded into the option."""
    chosen = dict(values)
    for each in options_of(group):
        if each.type is bool and each.optional and chosen.pop(f"no_{each.name}"):
            if chosen[each.name]:
                raise KvsimError(f"{each.name} must be either on or off, got both")
            chosen[each.name] = False
    return chosen


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
NO_TRAFFIC, NO_SERVER = TrafficTexts(), ScenarioTexts()


def with_values(argv: Sequence[str]) -> list[str]:
    """A command line of a sweep with a value after every option that may stand alone.

    `--enable-prefix-caching` is on, `--no-enable-prefix-caching` is off, `--zip` pairs all lists.
    """
    alone = {each.flag for kind in (Traffic, Scenario) for each in options_of(kind) if each.type is bool}
    found = []
    for word, following in zip(argv, [*argv[1:], "--"], strict=True):
        positive = f"--{word.removeprefix('--no-')}"
        if word.startswith("--no-") and positive in alone:
            found.append(f"{positive}=off")
        elif word in alone and following.partition(",")[0].lower() not in ("on", "off", "true", "false"):
            found.append(f"{word}=on")
        elif word == "--zip" and following.startswith("-"):
            found.append("--zip=all")
        else:
            found.append(word)
    return found
