"""Files: read with one-line errors about what is wrong, written whole or not at all."""
