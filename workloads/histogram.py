"""Lengths drawn from the PagedAttention paper's histograms of its two data sets (Figure 11).

    bar [from, to, density] --rows in proportion to its area--> whole numbers spread evenly over it

Prompts and answers are drawn independently, as the paper has separate histograms; in real chats they are
hardly correlated (ShareGPT: -0.02). No copy of Alpaca's own table is available. The table is always the same:
its size and seed are fixed.
"""

import json
from importlib import resources

import numpy as np

from kvsim.sim.workload import Int64Column
from kvsim.workloads.lengths import Lengths

ROWS = 52_000
"""About as many rows as Alpaca has."""

SEED = 2309_06180


def load_alpaca() -> Lengths:
    """Instructions, with short prompts and short answers."""
    return _drawn("alpaca", "Alpaca")


def load_sharegpt_paper() -> Lengths:
    """Chats as in the paper, with longer answers than in the copy that kvsim ships."""
    return _drawn("sharegpt-paper", "ShareGPT")


def _drawn(name: str, data_set: str) -> Lengths:
    text = resources.files("kvsim.workloads.data").joinpath("figure11.json").read_text(encoding="utf-8")
    bars = json.loads(text)[name]
    rng = np.random.default_rng(SEED)
    prompts, outputs = (_column(bars[column], rng) for column in ("prompt_tokens", "output_tokens"))
    note = (
        f"{data_set} lengths drawn from the histograms in Figure 11 of the PagedAttention paper, prompts and "
        "answers independently: no real requests."
    )
    return Lengths(name, prompts, outputs, (note,))


def _column(bars: list[list[float]], rng: np.random.Generator) -> Int64Column:
    """Integers from bars of any width, in random order; each belongs to the bar it lies in."""
    edges = np.array(bars)
    low, high = (np.ceil(edges[:, side] - 1e-3).astype(np.int64) for side in (0, 1))
    area = np.cumsum((edges[:, 1] - edges[:, 0]) * edges[:, 2])
    at = (np.arange(ROWS) + 0.5) / ROWS * area[-1]
    bar = np.searchsorted(area, at)
    below = np.concatenate([[0.0], area])[bar]
    place = (at - below) / (area[bar] - below)
    return rng.permutation(low[bar] + (place * (high - low)[bar]).astype(np.int64))
