"""Keep an existing profile beside the new one, under its own date.

    nvidia-h200.json    of 2026-01-01, and measured again:    nvidia-h200-2026-01-01.json    and the new one

A rehearsal is overwritten, as nothing was measured. Any other file is refused before the measurement.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.kernels.calibration.errors import CalibrationError
from kvsim.kernels.calibration.foreign import foreign_text
from kvsim.kernels.calibration.profile import write_profile


def kept_as(path: Path) -> Path | None:
    """Where an existing profile at `path` will be kept; None if there is none, or only a rehearsal.

    Raises CalibrationError if the file there is something else.
    """
    if not os.path.lexists(path):
        return None
    try:
        found = json.loads(foreign_text(path))
        kind = found["kind"]
        date = str(found["measured"]["date"])[:10] if kind == "calibrated" else ""
        path.with_name(f"{path.stem}-{date}{path.suffix}")  # a ValueError if that is no valid name
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise CalibrationError(
            f"{path} is there and is no profile of a calibration: name another file"
        ) from None
    if kind == "rehearsal":
        return None
    if kind != "calibrated":
        raise CalibrationError(f"{path} is there and is no profile of a calibration: name another file")
    kept, number = path.with_name(f"{path.stem}-{date}{path.suffix}"), 1
    while os.path.lexists(kept):
        number += 1
        kept = path.with_name(f"{path.stem}-{date}-{number}{path.suffix}")
    return kept


def write_beside(profile: Mapping[str, Any], path: Path, journal: Path | None = None) -> Path | None:
    """Write a profile atomically; returns where the earlier one is kept, if there was one.

    `path` always has a complete profile. Raises CalibrationError if it cannot be written; the journal is
    kept.
    """
    kept = kept_as(path)
    try:
        if kept is not None:
            try:
                os.link(path, kept)
            except OSError:  # some file systems do not support it
                shutil.copy2(path, kept)
        write_profile(profile, path, journal)
    except OSError as error:
        raise CalibrationError(
            f"cannot write {path}: {error.strerror or error}; what was measured is kept: the same command "
            "continues"
        ) from error
    return kept
