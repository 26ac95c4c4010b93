"""Where a GPU's memory goes, and how many requests fit: the questions of `sim fit`."""
