"""Measured profiles as files, and which of them a run uses.

    calibrated   by `sim calibrate`, on the user's own GPU; those of an H200 and an H100 ship
    elsewhere    by others, from public tables of kernel times (benchmarks/elsewhere); these ship
    rehearsal    not measured: made without a GPU

A profile is found by path, by name in the user's own directory, or by name among the shipped ones
(sim/profiles/). A GPU's name finds a profile of that GPU: the user's before shipped ones, then those without
faults, full ones, the newest. Of shipped profiles those measured elsewhere come first: they are of an
engine's own kernels. They also lend to others of their GPU what these lack (lent_parts.py).

A run keeps what it needs of a profile in its config.json, not a path: the fitted parts, their origin, and the
SHA-256 of the whole file. Raw points are left out, as are parts and axis values that its model does not use.
So a run can be repeated to the byte even without the file, and the hash shows whether a file is the same.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from kvsim.sim.cost.lent_parts import with_lent
from kvsim.sim.cost.logged import cost_of
from kvsim.sim.cost.profile_checks import KINDS, check_profile
from kvsim.sim.cost.published import ELSEWHERE, OURS
from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.files.reading import content_of, json_in, understood
from kvsim.sim.models.catalog import gpu_named, gpu_names
from kvsim.sim.models.own_gpu import read_own_gpu
from kvsim.sim.models.spec import GpuSpec

FORMAT = 1
COSTS = {"calibrated": ("calibrated", "rehearsal"), "measured-elsewhere": ("elsewhere",)}
"""Cost -> the kinds of profile that it accepts."""
REHEARSAL = "rehearsal, not a measurement"

Profile = Mapping[str, Any]
"""The part of a profile that a run needs, in JSON types: `settings` below."""


def directory() -> Path:
    """The directory of the user's own profiles: $KVSIM_PROFILES, else the platform's data directory."""
    chosen = os.environ.get("KVSIM_PROFILES")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_data_dir("kvsim", appauthor=False)) / "profiles"


@dataclass(frozen=True)
class ProfileFile:
    """A profile and its location.

    Attributes
    ----------
    origin : str
        "yours", "shipped" or, if named by its path, "file".
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
        """The name by which `--gpu` finds it."""
        return str(self.content["name"])

    @property
    def gpu(self) -> str | None:
        """The GPU that was measured, by its name in sim/models/gpus.toml; None if it is not listed there."""
        gpu = self.content["gpu"]
        return None if gpu is None else str(gpu)

    @property
    def date(self) -> str:
        """The date of the measurement: 2026-11-21."""
        return str(self.content["measured"]["date"])[:10]

    @property
    def rehearsal(self) -> bool:
        """Whether it is a rehearsal: nothing was measured on a GPU."""
        return bool(self.content["kind"] == "rehearsal")

    @property
    def elsewhere(self) -> bool:
        """Whether others measured it."""
        return bool(self.content["kind"] == "elsewhere")

    @property
    def engine(self) -> str:
        """The engine whose kernels were measured: vLLM 0.24.0."""
        return str(self.content["engine"]["decode"]).partition(":")[0]

    @property
    def cost(self) -> str:
        """The cost model that accepts it."""
        return "measured-elsewhere" if self.elsewhere else "calibrated"

    @property
    def quick(self) -> bool:
        """Whether only a few points were measured: `sim calibrate --quick`."""
        return bool(self.content["measured"].get("quick"))

    @property
    def faults(self) -> list[str]:
        """Reasons to distrust it: the GPU drifted, or its parts do not add up to whole steps."""
        return [str(each) for each in self.content["measured"].get("faults", ())]

    @property
    def composed_error(self) -> float | None:
        """Mean absolute error on composed steps that no fit used; None if there are none."""
        error = self.content["composed"]["error"]
        return None if error is None else float(error["mean"])

    def settings(self) -> Profile:
        """The part of the profile that a run needs."""
        content = self.content
        named = {key: content[key] for key in ("kind", "name", "gpu", "launch")}
        named |= {key: content[key] for key in ("source", "engine") if key in content}
        named |= {"faults": self.faults} if self.faults else {}
        measured = {key: content["measured"].get(key) for key in ("date", "driver", "torch", "triton")}
        return {
            **named,
            "sha256": self.sha256,
            "device": content["device"]["name"],
            "measured": measured,
            "composed_error": self.composed_error,
            "parts": self.parts,
        }

    @property
    def parts(self) -> dict[str, Mapping[str, Any]]:
        """The parts without their points."""
        kept = ("form", "constants", "tables", "range", "scaled_from")
        parts = self.content["parts"]
        return {name: {key: part[key] for key in kept if key in part} for name, part in parts.items()}

    @property
    def lender(self) -> "ProfileFile | None":
        """The profile that lends this one what it lacks."""
        if self.content["kind"] != "calibrated" or self.gpu is None:
            return None
        return next((each for each in _shipped(self.gpu) if each.elsewhere), None)

    def completed(self) -> Profile:
        """The settings, with what the profile lacks and another has."""
        settings, lender = self.settings(), self.lender
        if lender is None:
            return settings
        return {**settings, "parts": with_lent(self.parts, lender.parts, lender.engine)}

    def gpu_spec(self) -> GpuSpec:
        """The GPU that was measured: the built-in one, else from the profile's own ceilings."""
        if self.gpu in gpu_names():
            return gpu_named(str(self.gpu))
        device, ceilings, parts = (self.content[key] for key in ("device", "ceilings", "parts"))
        host = parts.get("to_host", {}).get("form", {}).get("bandwidth_bytes_per_s") or 16e9
        return GpuSpec(
            name=str(self.gpu) if self.elsewhere else self.name,
            memory_bytes=int(device["memory_bytes"]),
            bandwidth_bytes_per_s=float(ceilings["copy_bytes_per_s"]),
            flops_per_s=float(ceilings["matrix_flops_per_s"]),
            pcie_bytes_per_s=float(device.get("pcie_bytes_per_s") or host),
            link_bytes_per_s=device.get("link_bytes_per_s"),
            bandwidth_efficiency=1.0,
            matmul_efficiency=GpuSpec.matmul_efficiency if self.elsewhere else 1.0,
            source=f"profile {self.name}, as measured{' elsewhere' if self.elsewhere else ''}",
        )


def read_profile(path: Path, origin: str = "file") -> ProfileFile:
    """The profile in a file; a one-line KvsimError if it is not a profile."""
    what = f"profile {path}"
    data = content_of(path, what)
    content = _checked(path, json_in(data, what))
    return ProfileFile(path, origin, content, hashlib.sha256(data).hexdigest())


def _checked(path: Path, content: object) -> Mapping[str, Any]:
    """The parsed JSON; KvsimError unless it has the shape that runs and listings need."""
    if not isinstance(content, dict) or content.get("kind") not in KINDS:
        kinds = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
        raise KvsimError(
            f"profile {path} is not one of sim calibrate: its kind is not {kinds} "
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


def profile_files(gpu: str | None = None) -> list[ProfileFile | KvsimError]:
    """The user's profiles, best first, then the shipped ones (of one GPU); an error for each damaged one."""
    own = sorted(directory().glob("*.json")) if directory().is_dir() else []
    yours: list[ProfileFile | KvsimError] = []
    for path in own:
        try:
            yours.append(read_profile(path, "yours"))
        except KvsimError as error:
            yours.append(error)
    yours.sort(key=_worth, reverse=True)
    return [*yours, *_shipped(gpu)]


def _worth(found: ProfileFile | KvsimError) -> tuple[bool, bool, str]:
    """Sort key: without faults first, full before quick, then newest; damaged ones last."""
    if not isinstance(found, ProfileFile):
        return False, False, ""
    return not found.faults, not found.quick, str(found.content["measured"]["date"])


def _shipped(gpu: str | None = None) -> Iterator[ProfileFile]:
    """The shipped profiles, or those of one GPU: reads only what is requested."""
    entries = sorted(resources.files("kvsim.sim.profiles").iterdir(), key=lambda entry: entry.name)
    for suffix, entry in product((ELSEWHERE, OURS), entries):
        if not entry.name.endswith(suffix):
            continue
        if gpu is not None and gpu not in (entry.name.removesuffix(suffix), Path(entry.name).stem):
            continue
        data = entry.read_bytes()
        yield ProfileFile(Path(str(entry)), "shipped", json.loads(data), hashlib.sha256(data).hexdigest())


def is_path(text: str) -> bool:
    """Whether a user's text is a path."""
    return text.endswith((".json", ".toml")) or "/" in text or os.sep in text


def find_profile(text: str, rehearsals: bool = False, kinds: Sequence[str] = KINDS) -> ProfileFile | None:
    """The profile at this path, of this name, or of this GPU; rehearsals only by path, unless requested."""
    if is_path(text):
        return read_profile(Path(text).expanduser())
    wanted = _normal(text)
    readable = [each for each in profile_files(wanted) if isinstance(each, ProfileFile)]
    readable.sort(key=lambda each: each.rehearsal)
    for each in (each for each in readable if each.content["kind"] in kinds):
        named = wanted in (_normal(each.name), _normal(each.path.stem)) or each.gpu == wanted
        if named and (rehearsals or not each.rehearsal):
            return each
    own = directory() / f"{text}.json"
    if own.is_file() and read_profile(own).rehearsal:  # or it is damaged: then this raises
        raise KvsimError(f"gpu {text!r} is a {REHEARSAL}: name it by its path, {own}")
    return None


def _normal(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def gpu_and_cost(gpu: str, cost: str | None) -> tuple[GpuSpec, str, Profile | None]:
    """Resolve `--gpu` and `--cost`: a GPU, the name of a cost model, and its profile if it needs one.

    The default cost is the GPU's calibrated profile if there is one, else the one measured elsewhere, else
    the roofline.
    """
    cost = cost_of(cost)
    own = read_own_gpu(Path(gpu).expanduser()) if is_path(gpu) else None
    if own is not None:
        if cost in COSTS:
            raise KvsimError(
                f"cost {cost} needs a measured profile, and {gpu} holds a datasheet's numbers: "
                "use --cost roofline, or measure with sim calibrate"
            )
        return own, cost or "roofline", None
    wanted = cost is None or cost in COSTS
    kinds = KINDS if cost is None else COSTS.get(cost, KINDS)
    found = None
    if wanted or is_path(gpu) or _normal(gpu) not in gpu_names():
        found = find_profile(gpu, kinds=kinds)
    if found is None:
        known = gpu_names()
        if _normal(gpu) not in known:
            profiles = [each for each in profile_files() if isinstance(each, ProfileFile)]
            yours = [each for each in profiles if not (each.rehearsal or each.elsewhere)]
            names = dict.fromkeys(each.name for each in yours)
            raise unknown("gpu", gpu, [*known, *(name for name in names if name not in known)])
        if wanted and cost is not None:
            raise KvsimError(_no_profile(gpu, cost))
        return gpu_named(gpu), cost or "roofline", None
    if wanted:
        if cost is not None and found.content["kind"] not in kinds:
            raise KvsimError(f"cost {cost} does not take profile {found.name}, which is for {found.cost}")
        return found.gpu_spec(), found.cost, found.completed()
    return found.gpu_spec(), str(cost), None


def _no_profile(gpu: str, cost: str) -> str:
    """The message that a cost has no profile here, and what to do."""
    if cost == "calibrated":
        return (
            f"cost calibrated needs a measured profile of gpu {gpu!r}, and there is none: "
            "measure one with sim calibrate, name one with --gpu FILE, or use --cost roofline"
        )
    names = ", ".join(str(each.gpu) for each in _shipped() if each.elsewhere)
    return f"cost {cost} must be left out for gpu {gpu!r}: profiles measured elsewhere ship of {names}"
