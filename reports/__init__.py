"""From results to run directories, terminal tables and figures."""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it reports where its font cache is
