"""`python -m kvsim`: the command `sim`."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] == os.getcwd():
    del sys.path[0]  # the working directory, which Python puts first for -m: what lies there is not ours

from kvsim.cli import main

if __name__ == "__main__":
    sys.exit(main())
