"""Length tables that ship with kvsim; SOURCES.md says where they come from."""
