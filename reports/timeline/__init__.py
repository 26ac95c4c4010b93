"""`sim trace-events`: `events` in the Trace Event Format, from requests and from the engine's `steps`."""
