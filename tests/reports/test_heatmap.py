"""The heat map of a sweep: what its colours and its headline compare."""

import numpy as np

from kvsim.reports.figures.style import SCREEN
from kvsim.reports.figures.swept.heatmap import heatmap
from kvsim.reports.sweeps.systems import System


def drawn(across, cells):
    """The headline and the colours if (allocator, value of `across`) serves this many tokens per second."""
    systems = [
        System(
            f"{row} {column}",
            {"allocator": row, across: column},
            {0: [{"throughput.output_tokens_per_s": tokens, "gpus": 1}]},
        )
        for (row, column), tokens in cells.items()
    ]
    figure = heatmap(systems, None, None, SCREEN)
    (image,) = figure.axes[0].get_images()
    headline = figure.get_suptitle().replace("\n", " ").replace("\u00a0", " ")
    return headline, np.round(np.ma.filled(image.get_array(), np.nan), 3).tolist()


def test_columns_of_one_traffic_are_compared_with_each_other():
    cells = {
        ("slabs", "h100"): 30.0,
        ("pages", "h100"): 60.0,
        ("slabs", "h200"): 60.0,
        ("pages", "h200"): 20.0,
    }
    headline, colours = drawn("gpu", cells)
    assert headline == ("Most output tokens/s per GPU with allocator slabs and gpu h200 and 1 other: 60.0")
    assert colours == [[30, 60], [60, 20]]


def test_columns_of_unlike_traffic_are_each_compared_with_their_own_most():
    cells = {
        ("slabs", "chat"): 30.0,
        ("pages", "chat"): 60.0,
        ("slabs", "code"): 900.0,
        ("pages", "code"): 891.0,
    }
    headline, colours = drawn("trace", cells)
    assert headline == (
        "Output tokens/s per GPU: pages gives at least 99 % of the most in every trace; "
        "slabs as little as 50 % of it, in chat"
    )
    assert colours == [[0.5, 1], [1, 0.99]]


def test_traffic_goes_across_and_what_serves_nothing_is_named():
    cells = {("slabs", "a"): 9.0, ("slabs", "b"): 0.0, ("slabs", "c"): 3.0}
    cells |= {("pages", "a"): 10.0, ("pages", "b"): 5.0, ("pages", "c"): 2.0}
    headline, colours = drawn("case", cells)
    assert headline == (
        "Output tokens/s per GPU: pages gives at least 67 % of the most in every case; slabs nothing, in b"
    )
    assert colours == [[0.9, 0, 1], [1, 1, 0.667]]


def test_rows_that_give_the_same_are_not_ranked():
    cells = {("slabs", "a"): 10.0, ("slabs", "b"): 5.0, ("pages", "a"): 9.9, ("pages", "b"): 5.0}
    headline, _ = drawn("case", cells)
    assert headline == "Output tokens/s per GPU: all give the same in every case, within 1 %"
