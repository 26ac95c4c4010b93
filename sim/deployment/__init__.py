"""A server with every name resolved: its engine, its memory, its allocator."""
