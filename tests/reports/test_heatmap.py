"""The heat map of a sweep: what its colours and its headline compare."""

import re
from dataclasses import replace

import numpy as np

from kvsim.reports.figures.style import SCREEN
from kvsim.reports.figures.swept import draw_sweep
from kvsim.reports.figures.swept.heatmap import heatmap
from kvsim.reports.sweeps.systems import System
from kvsim.sim.record.slo import Slo


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


def test_rows_that_find_prefixes_are_marked_if_others_find_none():
    def names(hits):
        systems = [
            System(
                f"{row} {case}",
                {"allocator": row, "case": case},
                {0: [{"throughput.output_tokens_per_s": 1.0, "gpus": 1, "engine.prefix_hit_tokens": tokens}]},
            )
            for row, tokens in hits.items()
            for case in ("chat", "agents")
        ]
        axes = heatmap(systems, None, None, SCREEN).axes[0]
        return [label.get_text() for label in axes.get_yticklabels()], axes.get_xlabel()

    marked = names({"pages": 64, "slabs": 0})
    assert marked == (["pages ●", "slabs ○"], "case\n● finds cached prefixes, ○ finds none")
    assert names({"pages": 64, "slabs": 8}) == (["pages", "slabs"], "case")
    assert names({"pages": 0, "slabs": 0}) == (["pages", "slabs"], "case")


def test_columns_of_one_traffic_are_compared_with_each_other():
    cells = {
        ("slabs", "h100"): 30.0,
        ("pages", "h100"): 60.0,
        ("slabs", "h200"): 60.0,
        ("pages", "h200"): 20.0,
    }
    headline, colours = drawn("gpu", cells)
    assert headline == (
        "Highest throughput: 60.0 output tokens/s per GPU, with pages, h100 and with slabs, h200"
    )
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
        "Output tokens/s per GPU: pages is within 1 % of the best in every trace; "
        "slabs has 50 % of it in chat"
    )
    assert colours == [[0.5, 1], [1, 0.99]]


def test_traffic_goes_across_and_what_serves_nothing_is_named():
    cells = {("slabs", "a"): 9.0, ("slabs", "b"): 0.0, ("slabs", "c"): 3.0}
    cells |= {("pages", "a"): 10.0, ("pages", "b"): 5.0, ("pages", "c"): 2.0}
    headline, colours = drawn("case", cells)
    assert headline == (
        "Output tokens/s per GPU: pages is within 33 % of the best in every case; slabs served nothing in b"
    )
    assert colours == [[0.9, 0, 1], [1, 1, 0.667]]


def test_rows_that_give_the_same_are_not_ranked():
    cells = {("slabs", "a"): 10.0, ("slabs", "b"): 5.0, ("pages", "a"): 9.9, ("pages", "b"): 5.0}
    headline, _ = drawn("case", cells)
    assert headline == "Output tokens/s per GPU: all are within 1 % of the best in every case"


def test_the_figure_says_once_who_served_nothing(tmp_path):
    cells = {("slab", "chat"): (5.0, 10), ("paged", "chat"): (5.0, 10)}
    cells |= {("slab", "documents"): (0.0, 0), ("paged", "documents"): (4.0, 10)}
    rows = [
        {
            **{"allocator": allocator, "case": case, "status": "finished", "gpus": 1},
            **{"throughput.output_tokens_per_s": tokens, "throughput.requests_per_s": tokens},
            **{"requests.finished": finished, "requests.submitted": 10, "cost.clock": "roofline"},
        }
        for (allocator, case), (tokens, finished) in cells.items()
    ]
    draw_sweep(rows, ["case", "allocator"], None, tmp_path, replace(SCREEN, formats=("svg",)))
    text = (tmp_path / "heatmap.svg").read_text()
    said = " ".join(re.findall(r"<!-- (.*?) -->", text))
    assert "slab served nothing in documents" in said and "Requests served" not in said


def rated(goodput, *, met=True, seeds=1):
    """A point's rows: goodput by seed."""
    values = goodput if isinstance(goodput, tuple) else (goodput,) * seeds
    return [{"slo.goodput_requests_per_s_per_gpu": value, "slo.met": met} for value in values]


def headline_of(points):
    """The headline for systems by scheduler: load -> rows."""
    found = [System(name, {"scheduler": name}, loads) for name, loads in points.items()]
    return heatmap(found, "request_rate", Slo.parse("ttft:p99=1s"), SCREEN).get_label()


def test_the_best_cells_are_named_with_their_load_and_whether_they_miss_the_slo():
    same = {2.0: rated(1.5), 8.0: rated(2.43, met=False)}
    assert headline_of({"vllm-v1": same, "orca": same}) == (
        "Highest goodput: 2.43 requests/s per GPU, at 8 requests/s (vllm-v1 and orca alike); "
        "ttft:p99=1s is missed there"
    )
    ahead = {2.0: rated(1.5), 8.0: rated(2.5)}
    assert headline_of({"vllm-v1": ahead, "orca": same}) == (
        "Highest goodput: 2.50 requests/s per GPU, at 8 requests/s with vllm-v1"
    )


def test_cells_that_seeds_do_not_tell_from_the_best_are_counted():
    noisy = {"vllm-v1": {2.0: rated((1.0, 1.1)), 8.0: rated((2.0, 2.4))}}
    noisy["orca"] = {2.0: rated((0.5, 0.51)), 8.0: rated((2.1, 2.2))}
    assert headline_of(noisy).endswith(
        "at 8 requests/s with vllm-v1; not distinguishable given seed noise: 1 other cell"
    )
