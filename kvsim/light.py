"""What the command line leaves out, to answer sooner; whoever imports kvsim as a library keeps it.

A command ends in seconds and holds few reference cycles, and nobody asks it for documentation.
"""

import atexit
import gc
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
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


def leave_out() -> None:
    """Import NumPy without the docstrings of its C functions, and SimPy without a look at its own version.

    The docstrings are a sixth of NumPy's import; for the version, Python's email is imported.
    """
    if "numpy" not in sys.modules:
        for name in ("numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars"):
            sys.modules[name] = ModuleType(name)
    if not {"simpy", "importlib.metadata"} & sys.modules.keys():
        unknown: Any = ModuleType("importlib.metadata")
        unknown.version = lambda package: "unknown"
        sys.modules[unknown.__name__] = importlib.metadata = unknown
        try:
            importlib.import_module("simpy")
        except AttributeError:  # it asks for more: whoever needs it imports all of it
            pass
        finally:
            del sys.modules[unknown.__name__], importlib.metadata


def without_docstrings() -> None:
    """Import matplotlib, if nobody has, without the docstrings that it writes for its classes meanwhile.

    They are a third of its import.
    """
    if "matplotlib.artist" not in sys.modules:
        from matplotlib import artist

        written = "_update_set_signature_and_docstring"
        if hasattr(artist.Artist, written):
            setattr(artist.Artist, written, classmethod(lambda cls: None))
        if hasattr(artist, "kwdoc"):
            artist.kwdoc = lambda described: ""
