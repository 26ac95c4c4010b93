"""A GPU in about six numbers: a user's file for `--gpu FILE`, and every entry of gpus.toml.

    name = "my-gpu"              default: the file's name
    memory_mib = 46068           as shown by nvidia-smi; or memory_gib = 45
    bandwidth_gb_per_s = 960     device memory
    bf16_tflops = 250            dense matrix products; fp16_tflops if there is no BF16
    pcie_gb_per_s = 32           to the host, in one direction
    link_gb_per_s = 56           to other GPUs, in one direction; left out if they communicate over PCIe
    node_gpus = 8                GPUs joined by these links; between nodes, the network is used
    network_gb_per_s = 50        per GPU, in one direction: 50 for 400 Gb/s
    peer_access = true           whether GPUs without links reach each other over PCIe, or through the host

The file is TOML or JSON, recognized by its content; a calibrated profile is also JSON. The shares of the two
peaks that kernels reach may be given; the defaults are those of all GPUs (GpuSpec).
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from kvsim.sim.errors import KvsimError, unknown
from kvsim.sim.files.reading import content_of, json_in
from kvsim.sim.models.spec import GpuSpec

GIB = 2**30

PEAKS = ("bf16_tflops", "fp16_tflops")
MEMORY = ("memory_gib", "memory_mib")
"""A GPU must have exactly one key of each group."""

FIELDS: dict[str, tuple[float, float, str]] = {
    "memory_gib": (1, 4096, "GiB"),
    "memory_mib": (1024, 4096 * 1024, "MiB"),
    "bandwidth_gb_per_s": (10, 200_000, "GB/s"),
    "bf16_tflops": (0.001, 200_000, "TFLOP/s"),
    "fp16_tflops": (0.001, 200_000, "TFLOP/s"),
    "pcie_gb_per_s": (1, 10_000, "GB/s"),
    "link_gb_per_s": (1, 20_000, "GB/s"),
    "node_gpus": (1, 4096, "GPUs"),
    "network_gb_per_s": (0.01, 20_000, "GB/s"),
    "bandwidth_efficiency": (0.01, 1, "a share"),
    "matmul_efficiency": (0.01, 1, "a share"),
    "kernel_overhead_us": (0.01, 1000, "us"),
    "attention_latency_us": (0.01, 1000, "us"),
}
"""Number -> its least and greatest value, to catch wrong units, and its unit."""

NEEDED = ("bandwidth_gb_per_s", "pcie_gb_per_s")
TEXTS = ("name", "source")
FLAGS = ("peer_access",)
PROFILE_KEYS = frozenset(("kind", "format", "parts"))
"""Keys that a calibrated profile has and a GPU file does not."""


def gpu_of(entry: Mapping[str, object], name: str, source: str) -> GpuSpec:
    """The GPU of a table's entry, which may state another name and source.

    Raises
    ------
    KvsimError
        A field is unknown or missing, or a value impossible.
    """
    known = [*TEXTS, *FIELDS, *FLAGS]
    for field, value in entry.items():
        if field not in known:
            raise unknown("field", field, known)
        if field in TEXTS and not (isinstance(value, str) and value.strip()):
            raise KvsimError(f"{field} must be a text, got {value!r}")
        if field in FLAGS and not isinstance(value, bool):
            raise KvsimError(f"{field} must be true or false, got {value!r}")
    numbers = {field: _number(field, entry[field]) for field in FIELDS if field in entry}
    memory = [field for field in MEMORY if field in numbers]
    if len(memory) != 1:
        got = "both" if memory else "neither"
        raise KvsimError(f"memory_gib must be there: {_allowed('memory_gib')}, or memory_mib, got {got}")
    for field in NEEDED:
        if field not in numbers:
            raise KvsimError(f"{field} must be there: {_allowed(field)}")
    peaks = [numbers[field] for field in PEAKS if field in numbers]
    if len(peaks) != 1:
        got = "both" if peaks else "neither"
        raise KvsimError(f"bf16_tflops must be there, or fp16_tflops if there is no BF16, got {got}")
    shares = {field: numbers[field] for field in numbers if field.endswith("_efficiency")}
    if "network_gb_per_s" in numbers:
        shares["network_bytes_per_s"] = numbers["network_gb_per_s"] * 1e9
    for field in ("kernel_overhead", "attention_latency"):
        if f"{field}_us" in numbers:
            shares[f"{field}_s"] = numbers[f"{field}_us"] / 1e6
    return GpuSpec(
        name=str(entry.get("name", name)),
        memory_bytes=round(numbers[memory[0]] * (GIB if memory[0] == "memory_gib" else GIB // 1024)),
        bandwidth_bytes_per_s=numbers["bandwidth_gb_per_s"] * 1e9,
        flops_per_s=peaks[0] * 1e12,
        pcie_bytes_per_s=numbers["pcie_gb_per_s"] * 1e9,
        link_bytes_per_s=numbers["link_gb_per_s"] * 1e9 if "link_gb_per_s" in numbers else None,
        node_gpus=_whole("node_gpus", numbers.get("node_gpus", GpuSpec.node_gpus)),
        peer_access=bool(entry.get("peer_access", True)),
        source=str(entry.get("source", source)),
        **shares,
    )


def read_own_gpu(path: Path) -> GpuSpec | None:
    """The GPU in a file; None if the file is JSON of something else, such as a calibrated profile.

    Raises
    ------
    KvsimError
        The file cannot be read, is neither TOML nor JSON, or holds no possible GPU.
    """
    try:
        text = content_of(path, f"gpu {str(path)!r}").decode("utf-8")
    except UnicodeDecodeError as error:
        raise KvsimError(f"gpu {str(path)!r} must be a text, TOML or JSON") from error
    is_json = text.lstrip()[:1] == "{" or path.suffix == ".json"
    try:
        found = json_in(text, "") if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        if is_json:
            return None  # the reader of profiles reports what is wrong
        raise KvsimError(f"gpu {str(path)!r} is no valid TOML: {error}") from error
    if not isinstance(found, dict) or PROFILE_KEYS & found.keys():
        return None
    name, entry = path.stem, found
    if len(found) == 1 and isinstance(only := next(iter(found.values())), dict):
        name, entry = next(iter(found)), only  # under a heading, as in gpus.toml
    if is_json and not FIELDS.keys() & entry.keys():
        return None
    try:
        return gpu_of(entry, name, f"file {path.name}")
    except KvsimError as error:
        raise KvsimError(f"gpu {str(path)!r}: {error}") from error


def _number(field: str, value: object) -> float:
    least, most, _ = FIELDS[field]
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise KvsimError(f"{field} must be {_allowed(field)}, got {value!r}")
    return value


def _whole(field: str, value: float) -> int:
    if value != int(value):
        raise KvsimError(f"{field} must be a whole number, got {value!r}")
    return int(value)


def _allowed(field: str) -> str:
    least, most, unit = FIELDS[field]
    return f"a number from {least:g} to {most:,g} ({unit})"
