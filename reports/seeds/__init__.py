"""Runs with several seeds: `runs` carries them out, `intervals` sum them up; `tables` and `words` tell it."""
