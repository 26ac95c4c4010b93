"""Shared parts of the `sim` commands: the list of commands, common options, printing a table."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class Front(TyperGroup):
    """The list of commands without frames: importing the code that draws them takes longest."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(*args, **options | {"rich_markup_mode": None})


Force = Annotated[bool, typer.Option("--force", help="Replace files there that kvsim did not write.")]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="Run code that a file names.")]


def show(table: Any, remark: str = "") -> None:  # noqa: ANN401 - what rich can print
    """Print a table, and a remark below it."""
    from kvsim.reports import listing

    listing.show(table, remark)
