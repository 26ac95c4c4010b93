"""Lengths drawn from the histograms that the PagedAttention paper prints of its two data sets (Figure 11).

    bar [from, to, density] --as many rows as its area says--> whole numbers spread evenly over it

Prompts and answers are drawn independently, as the paper prints each alone; of real chats the two are
hardly correlated (ShareGPT: -0.02). No copy of Alpaca's own table is at hand. The table is the same each
time: its size, and the seed of its order, are fixed here.
"""

import json
from importlib import resources

import numpy as np

from kvsim.sim.workload import Int64Column
from kvsim.workloads.lengths import Lengths

ROWS = 52_000
"""About the rows of Alpaca itself."""

SEED = 2309_06180


def load_alpaca() -> Lengths:
    """Instructions: short prompts, short answers."""
    return _drawn("alpaca", "Alpaca")


def load_sharegpt_paper() -> Lengths:
    """Chats as the paper had them: longer answers than those of the copy that kvsim ships."""
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
    """Whole numbers from bars of any width, in random order; a number belongs to the bar that it lies in."""
    edges = np.array(bars)
    low, high = (np.ceil(edges[:, side] - 1e-3).astype(np.int64) for side in (0, 1))
    area = np.cumsum((edges[:, 1] - edges[:, 0]) * edges[:, 2])
    at = (np.arange(ROWS) + 0.5) / ROWS * area[-1]
    bar = np.searchsorted(area, at)
    below = np.concatenate([[0.0], area])[bar]
    place = (at - below) / (area[bar] - below)
    return rng.permutation(low[bar] + (place * (high - low)[bar]).astype(np.int64))
