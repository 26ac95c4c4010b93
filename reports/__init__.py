"""Result -> run directory, tables in the terminal, figures."""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where its cache of fonts lies is no news to anybody
