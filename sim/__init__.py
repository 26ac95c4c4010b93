"""The model of a server. It is independent of file formats and plots."""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

__version__ = "0.1.0"


def installed_build() -> str:
    """Which build is installed: "compiled with mypyc", or "pure Python"."""
    spec = find_spec("kvsim.sim.serving.replica")
    is_compiled = spec is not None and (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
    return "compiled with mypyc" if is_compiled else "pure Python"
