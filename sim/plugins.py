"""Imports the user's own code, named as `package.module:Name`: an allocator, a scheduler, a trace.

A module that is not installed is searched for in the working directory, as are the modules it imports.
Nothing else is searched for there: kvsim never imports a stray `pandas.py` or `torch.py`.

Names in a file are data: inside `trusting`, only code that the user also named is imported. The whole command
line runs inside `trusting`, so no file that a command reads can run code, whatever it contains.
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
"""The user's text: code runs only if this contains its name; None: any code may run."""


class CodeRefused(KvsimError):
    """A file names code that the user did not name."""


@contextmanager
def trusting(said: str | None) -> Iterator[None]:
    """Within the block, import only code that `said`, the user's text, names; None: any code."""
    before = _TRUSTED.set(said)
    try:
        yield
    finally:
        _TRUSTED.reset(before)


@dataclass(frozen=True)
class Trusting(Generic[T]):
    """A function that, in any process, trusts the same code as the process that created it."""

    function: Callable[..., T]
    said: str | None

    def __call__(self, *arguments: object) -> T:
        """Call the function."""
        with trusting(self.said):
            return self.function(*arguments)


def trusting_as_here(function: Callable[..., T]) -> Trusting[T]:
    """A function to be called elsewhere with the trust in effect here."""
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
    except (Exception, SystemExit) as error:  # the user's module may raise anything
        raise KvsimError(f"{field} {name!r} cannot be imported: {_place(error)}{_words(error)}") from error


def imported(name: str) -> object:
    """The object named `package.module:Name` in kvsim itself."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def named_here(field: str, name: str) -> object:
    """The same for a name in the user's code; KvsimError if there is none."""
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
        """The finder for the working directory, which Python asks last."""
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
        """Called by Python for a module found nowhere else; submodules are found by their package's path."""
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
    """File and line in the user's module where an error arose; "" if it arose elsewhere."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename[:1] != "<"]
    own = [frame for frame in frames if not _ours(frame.filename)]
    return f"{_relative(own[-1].filename)}, line {own[-1].lineno}: " if own else ""


def _ours(file: str) -> bool:
    """Whether a file is this one, or part of Python's import system."""
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
