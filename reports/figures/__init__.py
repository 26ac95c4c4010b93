"""Figures of one run or of several side by side, for screens, papers and slides; all that imports matplotlib.

    catalogue.py    every figure by name; `draw` draws some into a directory
    choices.py      what may be chosen: style, instant, latency      style.py    paper, screen, dark
    sheet.py        the sheet, and how it is saved                   pieces.py   what figures share
    joined.py       several runs joined into curves
    ledger.py occupancy.py requests.py latency.py lengths.py arrivals.py sweeps.py arena.py seeds.py

A figure is a function of the runs and the choices that gives a matplotlib Figure, a line in the catalogue.
"""

from reports.figures.catalogue import FIGURES, USUAL, check, draw
from reports.figures.choices import CannotDraw, Choices, Latency
from reports.figures.sheet import draw_picture
from reports.figures.style import STYLES, style_named

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
    "style_named",
]
