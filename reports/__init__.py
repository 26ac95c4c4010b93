"""Result -> run directory, tables in the terminal, figures."""
