"""`sim trace-events`: requests and engine `steps` as `events` in the Trace Event Format."""
