"""The figures of a replay in extreme cases: they are drawn without a warning and say what they show."""

import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from kvsim.reports.figures.replay import FIGURES, picture
from kvsim.reports.figures.style import style_named
from kvsim.reports.replays import Replayed

LONG = "vllm-bench-serve-llama-3.1-8b-instruct-request-rate-10.5-num-prompts-1000-run-number-12-of-12.json"


def made(requests, off=1.0, spread=0.1, **changes):
    """A replay of this many requests, by its errors."""
    rng = np.random.default_rng(1)
    ttft, tpot = rng.lognormal(-1.5, 0.6, requests), rng.lognormal(-3.6, 0.2, requests)
    measured = {"TTFT": ttft, "TPOT": tpot, "E2E": ttft + tpot * rng.integers(1, 300, requests)}
    pairs = {what: (of, off * of * np.exp(rng.normal(0, spread, requests))) for what, of in measured.items()}
    return replace(Replayed("result.json", "constant:1", np.arange(requests) / 5, pairs), **changes)


def served(replayed, share):
    """The same, with only a share served in the replay."""
    kept = int(share * len(replayed.latencies["E2E"][0]))
    pairs = {
        what: (one, np.r_[two[:kept], np.full(len(two) - kept, np.nan)])
        for what, (one, two) in replayed.latencies.items()
    }
    return replace(replayed, latencies=pairs)


def of_one_token(replayed):
    """The same, with answers of one token and a TPOT of 0."""
    nothing = np.zeros_like(replayed.latencies["TPOT"][0])
    return replace(replayed, latencies={**replayed.latencies, "TPOT": (nothing, nothing)})


EXTREME = {
    "one request": made(1),
    "many requests": made(20_000),
    "a long name": made(40, name=LONG),
    "far off": made(300, off=20.0),
    "equal": made(30, spread=0.0),
    "all rejected": served(made(40), 0.0),
    "half rejected": served(made(40), 0.5),
    "answers of one token": of_one_token(made(40)),
    "no times": made(40, start_s=None),
}


def drawn(which, name, style="screen"):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = picture(EXTREME[which], name, style_named(style))
        figure.draw_without_rendering()
    return figure


@pytest.mark.parametrize("style", ["screen", "paper"])
@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("which", EXTREME)
def test_it_is_drawn_without_a_warning(which, name, style):
    figure = drawn(which, name, style)
    for axes in figure.axes:
        for text in axes.texts:
            box, inside = text.get_window_extent(), axes.get_window_extent()
            assert box.x0 > inside.x0 - 3 and box.x1 < inside.x1 + 3, text.get_text()


def test_headlines_say_how_far_off_and_of_how_many():
    said = {which: drawn(which, "requests").get_label().replace("\u00a0", " ") for which in EXTREME}
    assert said["equal"] == "result.json, simulated over measured: TTFT +0.0 %, TPOT +0.0 %, E2E +0.0 %"
    assert said["all rejected"] == "result.json: no request was served on both sides"
    assert " measured (20 of 40 requests): TTFT " in said["half rejected"]
    assert "E2E 20" in said["far off"] and " times" in said["far off"] and "%" not in said["far off"]
    assert "TPOT" not in said["answers of one token"]
    assert drawn("all rejected", "time").get_label() == said["all rejected"]
    assert "of no" in drawn("answers of one token", "time").axes[1].texts[0].get_text()


def test_the_headline_over_time_says_how_far_off_the_first_and_the_last_are():
    said = {which: drawn(which, "time").get_label() for which in EXTREME}
    start = "result.json, simulated over measured: E2E "
    assert said["equal"] == f"{start}+0.0 % at the start, +0.0 % at the end"
    assert said["far off"].endswith(" at the end") and said["far off"].count(" times") == 2
    assert said["one request"].startswith(start) and said["one request"].endswith(" %, median")
    drifts = made(400, spread=0.0)
    measured, simulated = drifts.latencies["E2E"]
    pair = measured, simulated * np.linspace(1.0, 1.2, 400)
    drifts = replace(drifts, latencies={**drifts.latencies, "E2E": pair})
    figure = picture(drifts, "time", style_named("screen"))
    assert figure.get_label() == f"{start}+0.5 % at the start, +19.5 % at the end"


def test_labels_of_a_narrow_range_are_apart():
    axes = drawn("one request", "requests").axes[2]
    boxes = [label.get_window_extent() for label in axes.get_xticklabels(which="both") if label.get_text()]
    boxes = sorted((box for box in boxes if box.width), key=lambda box: box.x0)
    assert len(boxes) >= 2
    assert all(one.x1 < two.x0 for one, two in pairwise(boxes))
