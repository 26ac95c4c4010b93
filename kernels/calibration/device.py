"""The measured device and its software versions; a profile records them, and they identify a journal."""

import ctypes
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from kvsim.kernels.calibration.errors import (
    CalibrationError,
    DeviceLostError,
    NoGpuError,
    NotInstalledError,
)
from kvsim.kernels.calibration.timing import words_of

MULTIPROCESSORS_OF_A_REHEARSAL = 2


@dataclass(frozen=True)
class Device:
    """The device and its software.

    Attributes
    ----------
    name : str
        As torch reports it; "CPU" in a rehearsal.
    memory_bytes, capability, multiprocessors : int, tuple of int, int
        As torch reports them.
    count : int
        GPUs of this name.
    cuda, torch, triton, python, cublas : str or None
        Versions.
    uuid : str or None
        Identifies the card; a journal of another card is refused.
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
    cublas: str | None = None
    uuid: str | None = None

    @property
    def rehearsal(self) -> bool:
        """Whether times taken here are not real measurements."""
        return self.name == "CPU"

    def facts(self) -> Mapping[str, object]:
        """All fields as JSON types."""
        return asdict(self) | {"capability": list(self.capability)}


def found_device(interpret: bool) -> Device:
    """The first GPU; or the CPU for a rehearsal in Triton's interpreter.

    Raises NotInstalledError without torch or triton, NoGpuError without a GPU, DeviceLostError if it does not
    respond, CalibrationError if triton was already imported in the other mode.
    """
    _choose_interpreter(interpret)
    try:
        import torch
        import triton
    except ImportError as error:
        raise NotInstalledError(
            f"{error.name or error} is not installed: pip install '.[gpu]' in a clone of kvsim"
        ) from None
    except OSError as error:  # a library that torch loads is missing
        raise NotInstalledError(f"torch cannot be imported: {error}".splitlines()[0]) from error
    versions = {"torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version()}
    if interpret:
        return Device("CPU", 2**34, (9, 0), MULTIPROCESSORS_OF_A_REHEARSAL, 1, None, **versions)
    if not torch.cuda.is_available():
        raise NoGpuError("there is no GPU that torch can use")
    try:
        found = torch.cuda.get_device_properties(0)
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    except RuntimeError as error:
        raise DeviceLostError(f"the GPU does not answer: {words_of(error)}") from error
    return Device(
        name=names[0],
        memory_bytes=found.total_memory,
        capability=(found.major, found.minor),
        multiprocessors=found.multi_processor_count,
        count=names.count(names[0]),
        cuda=torch.version.cuda,
        **versions,
        cublas=cublas_version(torch.version.cuda),
        uuid=str(found.uuid) if hasattr(found, "uuid") else None,
    )


def cublas_version(cuda: str | None) -> str | None:
    """The version of the cuBLAS loaded by torch; None if it is not found."""
    try:
        library, number, parts = ctypes.CDLL(f"libcublas.so.{str(cuda).split('.')[0]}"), ctypes.c_int(), []
        for part in range(3):  # major, minor, patch
            if library.cublasGetProperty(part, ctypes.byref(number)):
                return None
            parts.append(str(number.value))
    except (OSError, AttributeError):
        return None
    return ".".join(parts)


def _choose_interpreter(interpret: bool) -> None:
    """Set TRITON_INTERPRET before triton is imported, after which it has no effect."""
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
