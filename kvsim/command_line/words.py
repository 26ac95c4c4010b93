"""The words of a command line, completed with the parts that a user may leave out.

run --record-map                      -> run --record-map=240
sweep --enable-prefix-caching         -> sweep --enable-prefix-caching=on
fit --gpu a100 --gpu h100             -> fit --gpu=a100,h100
"""

from collections.abc import Iterator, Sequence
from typing import Any

from kvsim.command_line.flags import of_parts
from kvsim.command_line.option_groups import Scenario, Traffic
from kvsim.sim.option import options_of
from kvsim.sim.options.outputs import MAP_INSTANTS

SWEEPING = ("sweep", "capacity")
"""Commands whose options take lists and ranges."""


def completed(argv: Sequence[str]) -> list[str]:
    """The command line with the number that `--record-map` may omit, and long names shortened."""
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


def with_values(argv: Sequence[str]) -> list[str]:
    """A sweep's command line with a value added to every option that may stand alone.

    `--enable-prefix-caching` is on, `--no-enable-prefix-caching` is off, `--zip` pairs all lists.
    """
    common = [each for kind in (Traffic, Scenario) for each in options_of(kind)]
    words = [
        word
        for word, following in zip(argv, [*argv[1:], "--"], strict=True)
        if following.startswith("--") and "=" not in word
    ]
    parts = of_parts(words, [each.flag for each in common])
    alone = {each.flag for each in (*common, *parts) if each.type is bool}
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


def joined(argv: Sequence[str], command: Any) -> list[str]:  # noqa: ANN401 - typer hides click's types
    """The command line with repeated options that take a list merged into one, with all their values."""
    lists = {
        flag: each.opts[0]
        for each in _options(command)
        if not each.multiple and (each.metavar or "").rstrip("]").endswith(",...")
        for flag in each.opts
    }
    found: list[str] = []
    places: dict[str, int] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        said = value if equals else next(words, None) if name in lists else None
        if name not in lists or said is None:
            found.append(word)
        elif lists[name] in places:
            found[places[lists[name]]] += f",{said}"
        else:
            places[lists[name]] = len(found)
            found.append(f"{name}={said}")
    return found


def _options(command: Any) -> Iterator[Any]:  # noqa: ANN401
    """The options of a command and its subcommands."""
    yield from (each for each in command.params if hasattr(each, "multiple"))
    for each in getattr(command, "commands", {}).values():
        yield from _options(each)
