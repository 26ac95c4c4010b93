"""The work of each `sim` command, one file per command; the functions of kvsim.api call the same code."""
