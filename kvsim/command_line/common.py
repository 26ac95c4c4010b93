"""Shared parts of the `sim` commands: the list of commands, common options, printing a table."""

from shutil import get_terminal_size
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_LINE, _WIDEST = 200, 80
"""Characters beyond which a command's sentence would be cut; the most columns."""


class Front(TyperGroup):
    """The list of commands without frames: importing the code that draws them takes longest."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - passed on
        super().__init__(*args, **options | {"rich_markup_mode": None})

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer hides click's types
        """As wide as the terminal; click takes 50 columns at least."""
        formatter.width = min(get_terminal_size().columns, _WIDEST) - 2
        super().format_help(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401
        """Each command in whole sentences; click cuts them short where the terminal is narrow."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(_LINE)) for name, each in found.items() if each is not None]
            )


Force = Annotated[bool, typer.Option("--force", help="Replace files there that kvsim did not write.")]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="Run code that a file names.")]


def show(table: Any, remark: str = "") -> None:  # noqa: ANN401 - what rich can print
    """Print a table, and a remark below it."""
    from kvsim.reports import listing

    listing.show(table, remark)
