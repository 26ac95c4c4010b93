"""Where a new profile is written, and the name a run uses for it."""

import re
from pathlib import Path

from kvsim.sim.cost.profile_files import ProfileFile, directory, find_profile
from kvsim.sim.errors import KvsimError
from kvsim.sim.models.catalog import gpu_names

NAMES = re.compile(r"[A-Za-z0-9][\w.-]*")


def new_profile(
    device: str, gpu: str | None, out: Path | None, name: str | None, *, quick: bool, rehearsal: bool
) -> Path:
    """The file for a new profile.

    Parameters
    ----------
    device, gpu : str
        The GPU's name as it reports it, and its name in sim/models/gpus.toml if listed.
    out : Path
        The requested file. By default it is among the user's own, under `name` or the device's name, with
        quick profiles beside full ones. A rehearsal is not of this machine and goes to the current directory.
    name : str
        The requested name.
    """
    if name is not None:
        _check_name(name, gpu)
    if out is not None:
        if out.suffix != ".json":
            raise KvsimError(f"out must end with .json, as --gpu knows files by it, got {out}")
        if out.is_dir():
            raise KvsimError(f"out must be a file, and {out} is a directory")
        return out
    if rehearsal:
        return Path(f"{name or 'rehearsal'}.json")
    usual = re.sub(r"[^\w.-]+", "-", device.lower()).strip("-") + ("-quick" if quick else "")
    return directory() / f"{name or usual}.json"


def _check_name(name: str, gpu: str | None) -> None:
    if NAMES.fullmatch(name) is None:
        raise KvsimError(f"name must be made of letters, digits, dots, dashes and underscores, got {name!r}")
    if name.lower() in gpu_names() and name.lower() != gpu:
        here = "this GPU is not built in" if gpu is None else f"this is a {gpu}"
        raise KvsimError(f"name must not be that of another GPU, got {name!r}: {here}")


def called_by(found: ProfileFile) -> str:
    """The shortest name by which `--gpu` finds a profile: the GPU's name, its own, else its path."""
    for name in (found.gpu, found.path.stem):
        other = find_profile(name) if name is not None and not found.rehearsal else None
        if name is not None and other is not None and other.path.resolve() == found.path.resolve():
            return name
    return str(found.path)
