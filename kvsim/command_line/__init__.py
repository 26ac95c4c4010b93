"""From a command line to calls: options from dataclasses, command groups, fast start-up."""
