"""Step times from a measured profile: `--cost calibrated`.

model           the cost model: the sum of a step's parts and of the gaps between their launches
step            the launches that make up a step of a model, on one of its GPUs
parts           a part of the profile as a function: form x interpolated ratio, in picoseconds
decode          decode attention over contexts of any sum, maximum and rounding
prefill         prefill attention over the chunks of prompts
extrapolation   the share of the simulated time that lies outside what was measured
"""
