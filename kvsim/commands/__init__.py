"""What each command of `sim` does, a file a command; the functions of kvsim.api call the same."""
