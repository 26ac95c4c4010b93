"""What the command line leaves out, to answer sooner; whoever imports kvsim as a library keeps it.

A command ends in seconds and holds few reference cycles, and nobody asks it for documentation.
"""

import atexit
import gc
import sys
from typing import Any


def collect_seldom() -> None:
    """Let Python search for reference cycles every 100,000 new objects, not every 700, and not at its end."""
    gc.set_threshold(100_000)
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)


def take_plain_values(command: Any) -> None:  # noqa: ANN401 - typer has click's commands, and hides them
    """Let typer take defaults and well-formed numbers of this command's options as they are.

    It would import pydantic and build a validator for each of a hundred options, nearly all of them left at
    their default. Whatever is not plain, mistakes among it, is left to typer. A typer that converts otherwise
    is left alone.
    """
    whole = command.get_params

    def get_params(ctx: Any) -> Any:  # noqa: ANN401
        options = whole(ctx)
        for option in options:
            untouched = getattr(option, "_runtime_param", option) is None
            if untouched and option.nargs == 1 and not option.multiple:
                option._runtime_param = _Plain(option)
        return options

    command.get_params = get_params


class _Plain:
    """Stands where typer keeps an option's validator, and makes way for it."""

    def __init__(self, option: Any) -> None:  # noqa: ANN401 - typer names no type for it
        about = option.type_descriptor
        ranged = getattr(about, "is_ranged", True)
        self._convert = None if ranged else {int: int, float: float, str: str}.get(about.annotation)

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - as typer's
        """The value of the option; usage errors as typer raises them."""
        if value is None or value is param.default:
            return value
        if self._convert is not None and type(value) is str:
            try:
                return self._convert(value)
            except ValueError:
                pass  # typer says what is wrong
        param._runtime_param = None
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def without_docstrings() -> None:
    """Import matplotlib, if nobody has, without the docstrings that it writes for its classes meanwhile.

    They are a third of its import.
    """
    if "matplotlib.artist" not in sys.modules:
        from matplotlib.artist import Artist

        written = "_update_set_signature_and_docstring"
        if hasattr(Artist, written):
            setattr(Artist, written, classmethod(lambda cls: None))
