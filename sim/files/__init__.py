"""Files: read with one line about what is wrong with them, written whole or not at all."""
