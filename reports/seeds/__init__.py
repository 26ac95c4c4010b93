"""Runs with several seeds: `runs` runs them, `intervals` and `words` summarize them."""
