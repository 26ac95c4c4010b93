"""Faster start-up of the command line: rare garbage collection, no validators for plain options."""

import atexit
import gc
import os
from pathlib import Path
from typing import Any, get_args, get_origin

from kvsim.sim.errors import KvsimError


def collect_seldom() -> None:
    """Collect garbage every 100,000 new objects instead of 700, and not at exit."""
    gc.set_threshold(100_000)
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)


def take_plain_values(command: Any) -> None:  # noqa: ANN401 - typer has click's commands, and hides them
    """Let typer accept defaults and well-formed numbers of this command's options unvalidated.

    Otherwise it imports pydantic and builds a validator for each of a hundred options, nearly all left at
    their defaults. Anything that is not plain, including mistakes, is left to typer. A typer version that
    converts differently is left alone.
    """
    whole = command.get_params

    def get_params(ctx: Any) -> Any:  # noqa: ANN401
        options = whole(ctx)
        for option in options:
            if getattr(option, "_runtime_param", option) is None:
                option._runtime_param = _Plain(option)
        return options

    command.get_params = get_params


class _Plain:
    """Takes the place of an option's validator in typer, and steps aside for it when needed."""

    def __init__(self, option: Any) -> None:  # noqa: ANN401 - typer names no type for it
        about, more = option.type_descriptor, option.type_descriptor.parameter_info
        one = get_args(about.annotation)[0] if get_origin(about.annotation) is list else about.annotation
        asks = (more.parser, more.min, more.max, more.path_type)
        asked = more.exists or more.resolve_path or more.writable or not (more.file_okay and more.dir_okay)
        plain = not asked and all(each is None for each in asks)
        self._several = one is not about.annotation
        self._convert = {int: int, float: float, str: str, Path: _path}.get(one) if plain else None

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - as typer's
        """The option's value; raises usage errors as typer does."""
        if value is None or value is param.default:
            return value
        if self._convert is not None:
            try:
                if self._several and value and all(type(each) is str for each in value):
                    return [self._convert(each) for each in value]
                if type(value) is str and not self._several:
                    return self._convert(value)
            except ValueError:
                pass  # typer may accept it
        param._runtime_param = None
        try:
            return param.get_runtime_param().coerce(value, param=param, ctx=ctx)
        except Exception as error:
            kind = {int: "a whole number", float: "a number"}.get(self._convert) if self._convert else None
            if kind is None or isinstance(error, KvsimError):
                raise
            raise KvsimError(f"{param.name} must be {kind}, got {value!r}") from None
        finally:
            param._runtime_param = self


def _path(text: str) -> Path:
    """A path that is readable or does not exist yet."""
    if os.path.exists(text) and not os.access(text, os.R_OK):
        raise ValueError(f"{text} cannot be read")
    return Path(text)
