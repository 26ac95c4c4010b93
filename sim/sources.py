"""Docstrings and abstract methods of compiled modules, read from the source next to them.

mypyc keeps neither docstrings nor marks of abstract methods. In pure Python both come from the object.
"""

import ast
from functools import lru_cache
from importlib import import_module
from pathlib import Path


@lru_cache(maxsize=64)
def source_beside(module: str) -> ast.Module | None:
    """The source of a compiled module; None for a module in pure Python."""
    file = getattr(import_module(module), "__file__", None)
    if file is None or file.endswith(".py"):
        return None
    source = Path(file).with_name(f"{module.rpartition('.')[2]}.py")
    return ast.parse(source.read_bytes()) if source.is_file() else None


def module_doc(module: str) -> str:
    """The docstring of a module."""
    source = source_beside(module)
    said = import_module(module).__doc__ if source is None else ast.get_docstring(source, clean=False)
    return (said or "").strip()


def class_doc(found: type) -> str | None:
    """The docstring of a class."""
    body = _class_beside(found)
    return found.__doc__ if body is None else ast.get_docstring(body, clean=False)


@lru_cache(maxsize=256)
def left_open(found: type) -> frozenset[str]:
    """The abstract methods in the body of a class."""
    body = _class_beside(found)
    if body is None:
        own = vars(found).items()
        return frozenset(name for name, each in own if getattr(each, "__isabstractmethod__", False))
    return frozenset(
        each.name
        for each in body.body
        if isinstance(each, ast.FunctionDef)
        and any(isinstance(mark, ast.Name) and mark.id == "abstractmethod" for mark in each.decorator_list)
    )


def _class_beside(found: type) -> ast.ClassDef | None:
    """The class definition in the source of its compiled module."""
    source = source_beside(found.__module__) if found.__module__.startswith("kvsim.") else None
    for each in source.body if source else ():
        if isinstance(each, ast.ClassDef) and each.name == found.__name__:
            return each
    return None
