"""Commands whose options are the fields of dataclasses, in the form that typer expects.

    @flat
    def run(*, traffic: Traffic, server: Scenario) -> None: ...

gives a command with an option for every field that sim/option.py describes. The dataclasses are those
of option_groups.py, imported only when such a command is called.
"""

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import is_dataclass
from functools import cached_property
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import CommandInfo

from kvsim.sim.errors import KvsimError
from kvsim.sim.option import Named, options_of


class Flattened:
    """A command whose dataclass parameters are replaced by their fields, as options.

    A parameter of the command itself replaces a field of that name. The options are determined lazily:
    most often another command is called.
    """

    def __init__(self, command: Callable[..., None], parts: Sequence[Named] = ()) -> None:
        self._command, self._parts = command, parts
        self.__name__, self.__doc__ = command.__name__, command.__doc__

    def with_parts(self, parts: Sequence[Named]) -> "Flattened":
        """The same command with the options of schedulers and allocators added."""
        return Flattened(self._command, parts)

    def __call__(self, **values: Any) -> None:  # noqa: ANN401 - whatever the options hold
        """Put the options back into their dataclasses and run the command."""
        groups, flattened = self._flattened
        for name, group in groups.items():
            given = {option.name: values.pop(option.name) for option in flattened[name]}
            values[name] = group(**_chosen(group, given))
        self._command(**values)

    @cached_property
    def _written(self) -> dict[str, inspect.Parameter]:
        """The parameters as written, with their annotations resolved."""
        hints = get_type_hints(self._command, localns=_Groups(self._parts), include_extras=True)
        written = inspect.signature(self._command).parameters
        return {name: each.replace(annotation=hints[name]) for name, each in written.items()}

    @cached_property
    def _flattened(self) -> tuple[dict[str, type], dict[str, list[inspect.Parameter]]]:
        """The parameters that are dataclasses, and the options of each."""
        parameters = self._written
        groups = {name: p.annotation for name, p in parameters.items() if is_dataclass(p.annotation)}
        own = parameters.keys() - groups.keys()
        return groups, {name: _options(group, own) for name, group in groups.items()}

    @property
    def __signature__(self) -> inspect.Signature:
        options: list[inspect.Parameter] = []
        for name, parameter in self._written.items():
            options += self._flattened[1].get(name) or [parameter]
        return inspect.Signature(options)

    @property
    def __annotations__(self) -> dict[str, Any]:
        return {name: option.annotation for name, option in self.__signature__.parameters.items()}


flat = Flattened


class _Groups(dict[str, Any]):
    """The names of option_groups.py, each looked up when an annotation uses it."""

    def __init__(self, parts: Sequence[Named]) -> None:
        super().__init__()
        self._parts = parts

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 - a dataclass
        from kvsim.command_line import option_groups

        if name not in option_groups.__all__:
            raise KeyError(name)  # one of cli.py's own names, or Python's
        return option_groups.with_parts(name, self._parts)


def called(argv: Sequence[str]) -> str:
    """The command in a command line, or ""."""
    return next((word for word in argv if not word.startswith("-")), "")


def shortened(app: typer.Typer, called: str, parts: Sequence[Named] = ()) -> typer.Typer:
    """The same commands, with options only for the one that is called: building them is slow.

    The called command also has the options of `parts`.

    Shell completion needs all options.
    """
    found = copy(app)
    found.registered_commands = [_shortened(each, called, parts) for each in app.registered_commands]
    return app if any(name.endswith("_COMPLETE") for name in os.environ) else found


def _shortened(command: CommandInfo, called: str, parts: Sequence[Named]) -> CommandInfo:
    whole = command.callback
    if whole is None:
        return command
    if called == (command.name or whole.__name__.replace("_", "-")):
        if not (parts and isinstance(whole, Flattened)):
            return command
        found = copy(command)
        found.callback = whole.with_parts(parts)
        return found

    def without_options() -> None: ...

    without_options.__name__, without_options.__doc__ = whole.__name__, whole.__doc__
    found = copy(command)
    found.callback = without_options
    return found


def of_parts(words: Sequence[str], known: Collection[str]) -> list[Named]:
    """The options of schedulers and allocators in a command line, besides the known flags."""
    flags = {word.partition("=")[0] for word in words if word.startswith("--")} - {*known}
    if not flags:
        return []
    from kvsim.sim.parts import KINDS, known_options

    chosen = [
        (kind, each)
        for kind in KINDS
        for word, following in zip(words, [*words[1:], ""], strict=True)
        for name, equals, value in [word.partition("=")]
        if name == f"--{kind}"
        for each in (value if equals else following).split(",")
    ]
    named = known_options(chosen).values()
    return [each for each in named if flags & {each.flag, f"--no-{each.flag[2:]}"}]


def given(ctx: typer.Context, free: Collection[str] = ()) -> list[str]:
    """The options given on the command line, except those in `free`."""
    sources = {name: getattr(ctx.get_parameter_source(name), "name", "") for name in ctx.params}
    found = [name for name, source in sources.items() if source == "COMMANDLINE" and name not in free]
    return [f"--{name.replace('_', '-')}" for name in found]


def names_of(groups: Collection[type]) -> set[str]:
    """The names of all options of these dataclasses."""
    return {each.name for group in groups for each in options_of(group)}


def _options(group: type, besides: Collection[str]) -> list[inspect.Parameter]:
    """The described fields of a dataclass as parameters."""
    found: list[inspect.Parameter] = []
    for each in options_of(group):
        if each.name not in besides:
            found += _parameters(each)
    return found


def _parameters(named: Named) -> list[inspect.Parameter]:
    """One option; an optional boolean has a second, hidden flag for off."""
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
    kind = list[str] | None if about.repeats else kind
    found = [_parameter(named.name, named.default, Annotated[kind, declared])]
    if named.type is bool and named.optional:
        off = typer.Option(f"--no-{named.flag[2:]}", hidden=True)
        found.append(_parameter(f"no_{named.name}", False, Annotated[bool, off]))
    return found


def _parameter(name: str, default: object, annotation: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _chosen(group: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options: `--no-` flags folded into their option, repeated values joined."""
    chosen = dict(values)
    for each in options_of(group):
        if each.about.repeats and chosen[each.name] is not None:
            chosen[each.name] = " ".join(chosen[each.name]) or None
        if each.type is bool and each.optional and chosen.pop(f"no_{each.name}"):
            if chosen[each.name]:
                raise KvsimError(f"{each.name} must be either on or off, got both")
            chosen[each.name] = False
    return chosen
