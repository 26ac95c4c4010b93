"""Memory sizes as users write them: `100GiB`, `2TiB`, `100GB`."""

import re
from typing import Final

from kvsim.sim.errors import KvsimError
from kvsim.sim.models.own_gpu import GIB

UNITS: Final = {"": GIB, "gib": GIB, "tib": 1024 * GIB, "mib": 2**20, "gb": 10**9, "tb": 10**12, "mb": 10**6}
SIZE: Final = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*")


def size_bytes(text: str, option: str = "kv_offloading_size") -> int:
    """Parse `100GiB`, `2TiB`, `100GB`; a bare number counts GiB, as in vLLM's flag. 0: no tier."""
    found = SIZE.fullmatch(text.lower())
    if found is None or found[2] not in UNITS:
        raise KvsimError(f"{option} must be a size such as 100GiB, or 0, got {text!r}")
    return int(float(found[1]) * UNITS[found[2]])
