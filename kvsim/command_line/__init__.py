"""How a command line becomes calls: options out of dataclasses, groups of commands, a quick start."""
