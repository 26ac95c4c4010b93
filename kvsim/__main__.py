"""`sim` and `python -m kvsim`: the command line. A signal ends it cleanly even while it is being imported."""

import os
import sys
from contextlib import suppress

with suppress(FileNotFoundError):  # the working directory may be gone
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        del sys.path[0]  # Python puts it first for -m, but its modules are not ours

import signal
from types import FrameType

from kvsim.sim.files.stopping import NUMBERS


def main() -> int:
    """Run this process's command line and return the exit code; the process ends afterwards."""
    heard = [number for number in NUMBERS if signal.getsignal(number) != signal.SIG_IGN]
    for number in heard:
        signal.signal(number, _stopped)
    from kvsim.cli import main as carry_out  # late: it takes most of the time of a short command

    try:
        return carry_out()
    finally:
        for number in heard:  # the work is done and reported; there is nothing left to stop
            signal.signal(number, signal.SIG_IGN)


def _stopped(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted; nothing was written\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
