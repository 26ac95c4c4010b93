"""Runs with several seeds: `runs` runs them, `intervals` summarize them; `tables` and `words` report."""
