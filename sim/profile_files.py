"""Calibrated profiles as files: JSON that `sim calibrate` wrote, and which of them a run uses.

Found by path; by name in the user's own directory; by name among those that ship (sim/profiles/). A GPU's
name finds the profile of that GPU: one of the user's before a shipped one, a full one before a quick one, the
newest first.

A run keeps what it needs of a profile in its config.json, not a path: the parts as fitted, where they come
from, and the SHA-256 of the whole file. The raw points stay behind. So a run can be repeated to the byte
when the file is gone, and whoever has the file can tell whether it is the same.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from kvsim.sim.catalog import gpu_named, gpu_names
from kvsim.sim.config import GpuSpec
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.own_gpu import read_own_gpu
from kvsim.sim.profile_checks import KINDS, check_profile
from kvsim.sim.reading import json_in, understood

FORMAT = 1
REHEARSAL = "rehearsal, not a measurement"

Profile = Mapping[str, Any]
"""What a run needs of a profile, in JSON's types: `settings` below."""


def directory() -> Path:
    """The user's own profiles: $KVSIM_PROFILES, else in the platform's data directory."""
    chosen = os.environ.get("KVSIM_PROFILES")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_data_dir("kvsim", appauthor=False)) / "profiles"


@dataclass(frozen=True)
class ProfileFile:
    """A profile, and where it lies.

    Attributes
    ----------
    origin : str
        "yours", "shipped" or, when it was named by its path, "file".
    content : mapping
        The JSON, see kernels/calibration/profile.py.
    sha256 : str
        Of the file's bytes.
    """

    path: Path
    origin: str
    content: Mapping[str, Any]
    sha256: str

    @property
    def name(self) -> str:
        """What `--gpu` finds it by."""
        return str(self.content["name"])

    @property
    def gpu(self) -> str | None:
        """The GPU of sim/gpus.toml that it was measured on, if it is one of them."""
        gpu = self.content["gpu"]
        return None if gpu is None else str(gpu)

    @property
    def date(self) -> str:
        """When it was measured: 2026-11-21."""
        return str(self.content["measured"]["date"])[:10]

    @property
    def rehearsal(self) -> bool:
        """Whether nothing of it was measured on a GPU."""
        return bool(self.content["kind"] == "rehearsal")

    @property
    def quick(self) -> bool:
        """Whether only few points were measured: `sim calibrate --quick`."""
        return bool(self.content["measured"].get("quick"))

    @property
    def composed_error(self) -> float | None:
        """Mean absolute error on composed steps that entered no fit; None where there are none."""
        error = self.content["composed"]["error"]
        return None if error is None else float(error["mean"])

    def settings(self) -> Profile:
        """What a run needs of it."""
        content = self.content
        named = {key: content[key] for key in ("kind", "name", "gpu", "launch")}
        measured = {key: content["measured"].get(key) for key in ("date", "driver", "torch", "triton")}
        kept = ("form", "constants", "tables", "range")
        return {
            **named,
            "sha256": self.sha256,
            "device": content["device"]["name"],
            "measured": measured,
            "composed_error": self.composed_error,
            "parts": {
                name: {key: part[key] for key in kept if key in part}
                for name, part in content["parts"].items()
            },
        }

    def gpu_spec(self) -> GpuSpec:
        """The GPU that it was measured on: as built in, else from the profile's own ceilings."""
        if self.gpu in gpu_names():
            return gpu_named(str(self.gpu))
        device, ceilings, parts = (self.content[key] for key in ("device", "ceilings", "parts"))
        host = parts.get("to_host", {}).get("form", {}).get("bandwidth_bytes_per_s") or 16e9
        return GpuSpec(
            name=self.name,
            memory_bytes=int(device["memory_bytes"]),
            bandwidth_bytes_per_s=float(ceilings["copy_bytes_per_s"]),
            flops_per_s=float(ceilings["matrix_flops_per_s"]),
            pcie_bytes_per_s=float(host),
            bandwidth_efficiency=1.0,
            matmul_efficiency=1.0,
            source=f"profile {self.name}, as measured",
        )


def read_profile(path: Path, origin: str = "file") -> ProfileFile:
    """The profile in a file; KvsimError in one line if it is none."""
    what = f"profile {path}"
    with understood(what):
        data = path.read_bytes()
    content = _checked(path, json_in(data, what))
    return ProfileFile(path, origin, content, hashlib.sha256(data).hexdigest())


def _checked(path: Path, content: object) -> Mapping[str, Any]:
    """The JSON; KvsimError unless it has the shape that a run and a listing rely on."""
    if not isinstance(content, dict) or content.get("kind") not in KINDS:
        raise KvsimError(
            f"profile {path} is not one of sim calibrate: its kind is not {' or '.join(KINDS)} "
            "(nor is it a GPU in numbers, which has memory_gib and others)"
        )
    if content.get("format") != FORMAT:
        newer = isinstance(content.get("format"), int) and content["format"] > FORMAT
        raise KvsimError(
            f"profile {path} has format {content.get('format')!r}, this kvsim reads {FORMAT}: "
            + ("a newer kvsim wrote it" if newer else "calibrate again")
        )
    with understood(f"profile {path}"):
        check_profile(content)
        found = ProfileFile(path, "file", content, "")
        found.settings()
        found.gpu_spec()
        if not all(
            isinstance(each, str) for each in (found.content["name"], found.content["measured"]["date"])
        ):
            raise TypeError("name and date must be texts")
    return content


def profile_files() -> list[ProfileFile | KvsimError]:
    """The user's profiles, best first, then those that ship; an error in the place of a damaged one."""
    own = sorted(directory().glob("*.json")) if directory().is_dir() else []
    yours: list[ProfileFile | KvsimError] = []
    for path in own:
        try:
            yours.append(read_profile(path, "yours"))
        except KvsimError as error:
            yours.append(error)
    yours.sort(key=_worth, reverse=True)
    return [*yours, *_shipped()]


def _worth(found: ProfileFile | KvsimError) -> tuple[bool, str]:
    """A full one before a quick one, then the newest; a damaged one is last."""
    if not isinstance(found, ProfileFile):
        return False, ""
    return not found.quick, str(found.content["measured"]["date"])


def _shipped() -> Iterator[ProfileFile]:
    for entry in sorted(resources.files("kvsim.sim.profiles").iterdir(), key=lambda entry: entry.name):
        if not entry.name.endswith(".json"):
            continue
        data = entry.read_bytes()
        content = json.loads(data)
        if content["kind"] == "calibrated":
            yield ProfileFile(Path(str(entry)), "shipped", content, hashlib.sha256(data).hexdigest())


def is_path(text: str) -> bool:
    """Whether a user means a file by this."""
    return text.endswith((".json", ".toml")) or "/" in text or os.sep in text


def find_profile(text: str, rehearsals: bool = False) -> ProfileFile | None:
    """The profile at that path, of that name, or of that GPU; rehearsals by path only, unless asked for."""
    if is_path(text):
        return read_profile(Path(text).expanduser())
    wanted = _normal(text)
    readable = [each for each in profile_files() if isinstance(each, ProfileFile)]
    readable.sort(key=lambda each: each.rehearsal)
    for each in (each for each in readable if rehearsals or not each.rehearsal):
        if wanted in (_normal(each.name), _normal(each.path.stem)) or each.gpu == wanted:
            return each
    own = directory() / f"{text}.json"
    if own.is_file() and read_profile(own).rehearsal:  # or it is damaged, and says so
        raise KvsimError(f"gpu {text!r} is a {REHEARSAL}: name it by its path, {own}")
    return None


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def gpu_and_cost(gpu: str, cost: str | None) -> tuple[GpuSpec, str, Profile | None]:
    """What `--gpu` and `--cost` mean: a GPU, the name of a cost model, and the profile if it needs one.

    Without a cost it is the calibrated profile of that GPU where there is one, else the roofline.
    """
    own = read_own_gpu(Path(gpu).expanduser()) if is_path(gpu) else None
    if own is not None:
        if cost == "calibrated":
            raise KvsimError(
                f"cost calibrated needs a measured profile, and {gpu} holds a datasheet's numbers: "
                "use --cost roofline, or measure with sim calibrate"
            )
        return own, cost or "roofline", None
    wanted = cost in (None, "calibrated")
    found = find_profile(gpu) if wanted or is_path(gpu) or _normal(gpu) not in gpu_names() else None
    if found is None:
        known = gpu_names()
        if _normal(gpu) not in known:
            profiles = [each for each in profile_files() if isinstance(each, ProfileFile)]
            names = dict.fromkeys(each.name for each in profiles if not each.rehearsal)
            raise unknown("gpu", gpu, [*known, *(name for name in names if name not in known)])
        if cost == "calibrated":
            raise KvsimError(
                f"cost calibrated needs a measured profile of gpu {gpu!r}, and there is none: "
                "measure one with sim calibrate, name one with --gpu FILE, or use --cost roofline"
            )
        return gpu_named(gpu), cost or "roofline", None
    if wanted:
        return found.gpu_spec(), "calibrated", found.settings()
    return found.gpu_spec(), str(cost), None
