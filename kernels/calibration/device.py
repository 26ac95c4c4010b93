"""Which device is measured, with which versions: what a profile states, and a journal is known by."""

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from kvsim.kernels.calibration.errors import CalibrationError, NoGpuError, NotInstalledError

MULTIPROCESSORS_OF_A_REHEARSAL = 2


@dataclass(frozen=True)
class Device:
    """The device and its software.

    Attributes
    ----------
    name : str
        As torch says it; "CPU" in a rehearsal.
    memory_bytes, capability, multiprocessors : int, tuple of int, int
        As torch says them.
    count : int
        GPUs of this name.
    cuda, torch, triton, python : str or None
        Versions.
    """

    name: str
    memory_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    count: int
    cuda: str | None
    torch: str
    triton: str
    python: str

    @property
    def rehearsal(self) -> bool:
        """Whether nothing that is timed here is a measurement."""
        return self.name == "CPU"

    def facts(self) -> Mapping[str, object]:
        """Everything, as JSON has it."""
        return asdict(self) | {"capability": list(self.capability)}


def found_device(interpret: bool) -> Device:
    """The first GPU; or the CPU for a rehearsal in Triton's interpreter.

    Raises NotInstalledError without torch or triton, NoGpuError without a GPU, CalibrationError where triton
    was imported for the other purpose before.
    """
    _choose_interpreter(interpret)
    try:
        import torch
        import triton
    except ImportError as error:
        raise NotInstalledError(
            f"{error.name or error} is not installed: pip install '.[gpu]' in a clone of kvsim"
        ) from None
    except OSError as error:  # a library that torch loads
        raise NotInstalledError(f"torch cannot be imported: {error}".splitlines()[0]) from error
    versions = {"torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version()}
    if interpret:
        return Device("CPU", 2**34, (9, 0), MULTIPROCESSORS_OF_A_REHEARSAL, 1, None, **versions)
    if not torch.cuda.is_available():
        raise NoGpuError("there is no GPU that torch can use")
    found = torch.cuda.get_device_properties(0)
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Device(
        name=names[0],
        memory_bytes=found.total_memory,
        capability=(found.major, found.minor),
        multiprocessors=found.multi_processor_count,
        count=names.count(names[0]),
        cuda=torch.version.cuda,
        **versions,
    )


def _choose_interpreter(interpret: bool) -> None:
    """Set TRITON_INTERPRET before triton is imported: afterwards it has no effect."""
    if "triton" in sys.modules:
        from kvsim.kernels.launch import INTERPRETED

        if interpret == INTERPRETED:
            return
    elif interpret:
        os.environ["TRITON_INTERPRET"] = "1"
        return
    elif os.environ.get("TRITON_INTERPRET", "0") in {"", "0"}:
        return
    if interpret:
        raise CalibrationError("triton was imported for a GPU before: a rehearsal needs a process of its own")
    raise CalibrationError("TRITON_INTERPRET is set, so nothing can be measured: unset it, or rehearse")
