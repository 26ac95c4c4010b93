"""Figures of one run or several, for screens, papers and slides. No other package uses matplotlib.

    catalogue.py    every figure by name; `draw` draws some into a directory
    choices.py      the choices: style, instant, latency             style.py    paper, screen, dark
    sheet.py png.py the sheet, and how it is saved                   pieces.py   code that figures share
    systems.py      groups runs that differ only in the seed         over_time.py  curves over time
    joined.py       joins several runs into curves over a setting
    ledger.py occupancy.py requests.py latency.py lengths.py arrivals.py sweeps.py arena.py seeds.py
    calibration.py  a measured GPU, not a run                        scales.py   logarithmic axes in words

A figure is a function of systems and choices that returns a matplotlib Figure, listed in the catalogue.
"""

from kvsim.reports.figures.catalogue import FIGURES, USUAL, check, draw, picture
from kvsim.reports.figures.choices import CannotDraw, Choices, Latency
from kvsim.reports.figures.sheet import draw_picture
from kvsim.reports.figures.style import STYLES, style_named, styled

__all__ = [
    "FIGURES",
    "STYLES",
    "USUAL",
    "CannotDraw",
    "Choices",
    "Latency",
    "check",
    "draw",
    "draw_picture",
    "picture",
    "style_named",
    "styled",
]
