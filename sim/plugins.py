"""The user's own code, named as `package.module:Name`: an allocator, a scheduler, a trace.

A module that is not installed is looked for in the working directory, and so are the modules it imports.
Nothing else is ever looked for there: kvsim does not import a stray `pandas.py` or `torch.py`.

Names in a file are data: inside `trusting`, only code that the user also named is imported. The whole command
line runs inside it, so no file that a command reads can run code, whichever option it sets.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module, invalidate_caches
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Generic, TypeVar

from kvsim.sim.errors import KvsimError

T = TypeVar("T")

_TRUSTED: ContextVar[str | None] = ContextVar("trusted", default=None)
"""The user's text, which must contain the name of any code that runs; None: all code may run."""


class CodeRefused(KvsimError):
    """Code is named only by a file."""


@contextmanager
def trusting(said: str | None) -> Iterator[None]:
    """A block in which code is imported only if `said`, the user's text, names it; None: any code."""
    before = _TRUSTED.set(said)
    try:
        yield
    finally:
        _TRUSTED.reset(before)


@dataclass(frozen=True)
class Trusting(Generic[T]):
    """A function that, in any process, trusts what was trusted where this object was made."""

    function: Callable[..., T]
    said: str | None

    def __call__(self, *arguments: object) -> T:
        """Call the function."""
        with trusting(self.said):
            return self.function(*arguments)


def trusting_as_here(function: Callable[..., T]) -> Trusting[T]:
    """The function, with the current trust, to be called elsewhere."""
    return Trusting(function, _TRUSTED.get())


def named_object(field: str, name: str) -> object:
    """The object that `package.module:Name` refers to.

    Raises
    ------
    CodeRefused
        If only a file names it.
    KvsimError
        If it cannot be imported; with the line at fault.
    """
    said = _TRUSTED.get()
    if said is not None and not re.search(rf"(^|[^\w.:/-]|trace:){re.escape(name)}($|[^\w./=-])", said):
        raise CodeRefused(
            f"{field} {name!r} is code that only a file names: pass --allow-code if you trust it"
        )
    module, _, attribute = name.partition(":")
    if not attribute.replace(".", "_").isidentifier():
        raise KvsimError(f"{field} {name!r} must be package.module:Name")
    try:
        return getattr(_imported(module), attribute)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise KvsimError(f"{field} {name!r} cannot be imported: {_mistake(error)}") from error
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        raise KvsimError(f"{field} {name!r} cannot be imported: {_place(error)}{_words(error)}") from error


def imported(name: str) -> object:
    """The object that a `package.module:Name` of kvsim's own refers to."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def named_here(field: str, name: str) -> object:
    """The same, for a name that a user wrote; KvsimError if there is none."""
    try:
        return imported(name)
    except (AttributeError, ImportError) as error:
        raise KvsimError(f"{field} {name!r} is not in kvsim: {_words(error)}") from error


def _imported(module: str) -> ModuleType:
    if not module:
        raise ImportError("there is no module before the colon")
    top = module.partition(".")[0]
    if top not in sys.modules and find_spec(top) is None:
        _Beside.here().add(top)
    return import_module(module)


class _Beside:
    """Finds modules in one folder: those that were named, and those imported by modules found there."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._named: set[str] = set()
        self._found: set[str] = set()

    @classmethod
    def here(cls) -> "_Beside":
        """The finder of the working directory, the last place where Python looks."""
        folder = os.getcwd()
        for finder in sys.meta_path:
            if isinstance(finder, cls) and finder.folder == folder:
                return finder
        finder = cls(folder)
        sys.meta_path.append(finder)
        return finder

    def add(self, top: str) -> None:
        """Find this module, whichever module imports it."""
        invalidate_caches()
        self._named.add(top)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called by Python for a module found nowhere else; a submodule is found by its package's path."""
        if path is not None or not (name in self._named or self._asked_from_here()):
            return None
        spec = PathFinder.find_spec(name, [self.folder])
        if spec is not None:
            self._found.add(name)
        return spec

    def _asked_from_here(self) -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and str(frame.f_globals.get("__name__")).startswith("importlib"):
            frame = frame.f_back
        asking = str(frame.f_globals.get("__name__")) if frame is not None else ""
        return asking.partition(".")[0] in self._found


def _mistake(error: SyntaxError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"it is no text in UTF-8: {error}"
    where = f"{_relative(error.filename)}, line {error.lineno}: " if error.filename else ""
    return f"{where}{error.msg}"


def _place(error: BaseException) -> str:
    """File and line of the user's module that an error comes from; "" if it comes from elsewhere."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename[:1] != "<"]
    own = [frame for frame in frames if not _ours(frame.filename)]
    return f"{_relative(own[-1].filename)}, line {own[-1].lineno}: " if own else ""


def _ours(file: str) -> bool:
    """Whether a file is this one, or belongs to Python's import system."""
    return (
        os.path.realpath(file) == os.path.realpath(__file__)
        or os.path.basename(os.path.dirname(file)) == "importlib"
    )


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, ImportError | AttributeError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _relative(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
