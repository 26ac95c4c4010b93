"""Measure a GPU and fit what a simulator needs: the first half of `sim calibrate`.

profile.py   the file that comes out, described field by field; writing and reading it
form.py      the fitted forms: bytes and work of each part, tables of ratios
"""
