"""kvsim: a discrete-event simulator of LLM-serving memory and scheduling.

The folders beside this file are links to those of the checkout's top level; an installed kvsim holds them as
plain packages. They are imported only when something of theirs is asked for: `import kvsim` costs nothing.
"""

from kvsim.sim import __version__

__all__ = ["__version__"]
