"""Turn results into run directories, terminal tables and figures."""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it logs where its font cache is
