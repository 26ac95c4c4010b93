"""An environment of given distributions and their requirements, nothing else: links into this one."""

import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement


def required_by(names):
    """Some distributions and all their requirements here, by name, without extras."""
    found, waiting = {}, list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = distribution(name)
            for one in map(Requirement, found[name].requires or ()):
                if one.marker is None or one.marker.evaluate({"extra": ""}):
                    waiting.append(one.name)
    return found


def bare_python(folder: Path, *names: str) -> Path:
    """The python of a new environment in `folder` that can import these distributions and no others."""
    venv.EnvBuilder(symlinks=True).create(folder)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    room = folder / "lib" / version / "site-packages"
    for found in required_by(names).values():
        for top in {path.parts[0] for path in found.files} - {"..", "__pycache__"}:
            link = room / top
            if not link.is_symlink():  # some share a folder
                link.symlink_to(found.locate_file(top))
    return folder / "bin" / "python3"
