"""The commands and their parameters, as the command line defines them."""

from collections.abc import Iterator

import typer

from kvsim import cli

FILES = ("FILE", "DIR", "RUN", "RESULT", "SOURCE", "PROFILE", "TRACE", "MODEL...", "IN", "OUT")
"""Metavars of parameters that may take a file."""


def commands() -> dict[str, list]:
    """Words of each command -> its parameters."""
    return dict(_below(typer.main.get_command(cli.app), ""))


def reads_or_writes_files() -> set[str]:
    """`replay log`: each parameter that is a path, or says in its help that it takes a file."""
    return {
        f"{name} {each.name}"
        for name, parameters in commands().items()
        for each in parameters
        if "Path" in str(each.type_descriptor.annotation)
        or any(
            word in (each.metavar or "") for word in ("FILE", "DIR", "RUN", "SOURCE", "PROFILE", "MODEL...")
        )
        or each.metavar in ("TRACE", "IN", "OUT")
    }


def _below(command: typer.core.TyperCommand, name: str) -> Iterator[tuple[str, list]]:
    below = getattr(command, "commands", {})
    if name and (not below or getattr(command, "invoke_without_command", False)):
        yield name, command.params
    for sub, inner in below.items():
        yield from _below(inner, f"{name} {sub}".strip())
