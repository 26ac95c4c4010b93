"""A server with every name looked up: its engine, its memory, its allocator."""
