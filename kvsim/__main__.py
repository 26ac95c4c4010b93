"""`python -m kvsim`: the command `sim`."""

import sys

from kvsim.cli import main

sys.exit(main())
