"""Step times from a measured profile: `--cost calibrated`.

model           the cost model: the parts of a step added up, with what lies between their launches
step            which launches a step of a model is made of, on one of its GPUs
parts           a part of the profile as a function: form x interpolated ratio, in picoseconds
decode          decode attention over contexts of any sum, maximum and rounding
prefill         prefill attention over the chunks of prompts
extrapolation   the share of the simulated time that lies outside of what was measured
"""
