"""How the command line answers sooner: few searches for reference cycles, no validator for a plain option."""

import atexit
import gc
import os
from pathlib import Path
from typing import Any, get_args, get_origin

from kvsim.sim.errors import KvsimError


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
            if getattr(option, "_runtime_param", option) is None:
                option._runtime_param = _Plain(option)
        return options

    command.get_params = get_params


class _Plain:
    """Stands where typer keeps an option's validator, and makes way for it."""

    def __init__(self, option: Any) -> None:  # noqa: ANN401 - typer names no type for it
        about, more = option.type_descriptor, option.type_descriptor.parameter_info
        one = get_args(about.annotation)[0] if get_origin(about.annotation) is list else about.annotation
        asks = (more.parser, more.min, more.max, more.path_type)
        asked = more.exists or more.resolve_path or more.writable or not (more.file_okay and more.dir_okay)
        plain = not asked and all(each is None for each in asks)
        self._several = one is not about.annotation
        self._convert = {int: int, float: float, str: str, Path: _path}.get(one) if plain else None

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 - as typer's
        """The value of the option; usage errors as typer raises them."""
        if value is None or value is param.default:
            return value
        if self._convert is not None:
            try:
                if self._several and value and all(type(each) is str for each in value):
                    return [self._convert(each) for each in value]
                if type(value) is str and not self._several:
                    return self._convert(value)
            except ValueError:
                pass  # it may be one that typer takes
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
    """A path that may be read, or that is not there yet."""
    if os.path.exists(text) and not os.access(text, os.R_OK):
        raise ValueError(f"{text} cannot be read")
    return Path(text)
