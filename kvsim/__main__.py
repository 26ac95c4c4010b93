"""`python -m kvsim`: the command `sim`."""

import os
import sys
from contextlib import suppress

with suppress(FileNotFoundError):  # there may be no working directory any more
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        del sys.path[0]  # Python puts it first for -m, but what lies there is not ours

from kvsim.cli import main

if __name__ == "__main__":
    sys.exit(main())
