"""The figures: they exist, they carry the right numbers, and no run is too small to draw."""

import warnings

import numpy as np
import pytest
from fake_run import CAPACITY, fake_run
from PIL import Image

from reports import palette, plots
from reports.rundir import Run
from sim.errors import KvsimError

NAMES = ["memory.png", "waste.png", "requests.png", "latency.png"]


def run_of(path, name=None, **how):
    made = fake_run(**how)
    return Run(path, name or made["summary"]["label"], **made)


@pytest.fixture
def three(tmp_path):
    return [run_of(tmp_path, label=label, requests=200) for label in ("contiguous", "buddy", "paged")]


def texts(figure):
    """All text of a figure that is not a tick."""
    axes = figure.axes
    found = [text.get_text() for ax in axes for text in (*ax.texts, ax.title, ax.xaxis.label, ax.yaxis.label)]
    legends = [legend for legend in [*figure.legends, *(ax.get_legend() for ax in axes)] if legend]
    found += [text.get_text() for legend in legends for text in legend.get_texts()]
    return [figure.get_suptitle(), *found]


def test_the_figures_are_1200_pixels_wide(tmp_path, three):
    paths = plots.draw(three, tmp_path)
    assert [path.name for path in paths] == NAMES
    for path in paths:
        with Image.open(path) as picture:
            assert picture.width == 1200
            assert 300 < picture.height < 1300


EDGES = {
    "no request": [{"requests": 0}],
    "one request": [{"requests": 1}],
    "rejected only": [{"requests": 4, "rejected": 4}],
    "nobody waits": [{"requests": 30, "request_rate": 0.05}],
    "some of each": [{"requests": 50}, {"requests": 0}, {"requests": 1}],
    "more runs than colours": [{"requests": 10, "seed": seed} for seed in range(9)],
}


@pytest.mark.parametrize("runs", EDGES.values(), ids=list(EDGES))
def test_every_run_can_be_drawn(tmp_path, runs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        paths = plots.draw([run_of(tmp_path, **how) for how in runs], tmp_path)
    assert [path.name for path in paths] == NAMES


def test_a_run_without_rows_says_so(tmp_path):
    run = run_of(tmp_path, requests=0)
    empty = {name: column[:0] for name, column in run.timeline.items()}
    run = Run(run.path, run.label, run.config, run.summary, run.requests, empty)
    plots.draw([run], tmp_path)
    assert "the run took no time: no memory to show" in texts(plots.memory_figure([run]))
    assert "no request was ever waiting" in texts(plots.requests_figure([run]))
    assert "no request finished" in texts(plots.latency_figure([run]))


def test_labels_are_drawn_as_they_are(tmp_path):
    run = run_of(tmp_path, name="$x_[/b]$ and_a rather long label of a run that nobody shortened " * 2)
    plots.draw([run, run], tmp_path)


@pytest.mark.parametrize("fmt", ["svg", "pdf"])
def test_vector_figures_have_the_same_bytes_twice(tmp_path, fmt):
    run = run_of(tmp_path)
    first = [path.read_bytes() for path in plots.draw([run], tmp_path, fmt)]
    assert first == [path.read_bytes() for path in plots.draw([run], tmp_path, fmt)]


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(KvsimError, match="figure format must be one of png, svg, pdf, got 'gif'"):
        plots.draw([run_of(tmp_path)], tmp_path, "gif")
    with pytest.raises(KvsimError, match="at least one"):
        plots.draw([], tmp_path)


def test_the_bars_are_the_saturated_shares_where_requests_waited_and_sum_to_100(three):
    figure = plots.waste_figure(three)
    kinds = len(palette.KINDS)
    bars = figure.axes[0].patches
    for row, run in enumerate(three):
        widths = [bar.get_width() for bar in bars[row * kinds : (row + 1) * kinds]]
        memory = run.summary["memory"]
        part = memory["saturated" if memory["saturated_share"] >= 0.02 else "average"]
        assert widths == pytest.approx([part[kind] for kind in palette.KINDS])
        assert sum(widths) == pytest.approx(100)


def test_a_run_in_which_nobody_waited_shows_its_average(tmp_path):
    run = run_of(tmp_path, requests=30, request_rate=0.05)
    assert run.summary["memory"]["saturated"] is None
    figure = plots.waste_figure([run])
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == pytest.approx([run.summary["memory"]["average"][kind] for kind in palette.KINDS])
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["paged\n(whole run)"]


def test_the_headline_and_the_bars_say_the_waste_in_numbers(three):
    wasted = [f"{palette.waste(palette.shares(run.summary)[0]):.1f} %" for run in three]
    said = texts(plots.waste_figure(three))
    assert said[0] == f"paged wastes {wasted[2]} of the KV memory, contiguous {wasted[0]}"
    assert {f"{percent} waste" for percent in wasted} <= set(said)


def test_slices_keep_the_time_integral_of_a_step_function():
    time = np.array([0.0, 1.0, 1.5, 4.0, 10.0])
    values = np.array([2.0, 8.0, 0.0, 1.0, 99.0])  # the last row only ends the run
    means, edges = plots._slice_means(time, values)
    assert (means * np.diff(edges)).sum() == pytest.approx(2 * 1 + 8 * 0.5 + 0 * 2.5 + 1 * 6)
    assert means[0] == pytest.approx(2.0)


def test_the_stack_fills_the_panel_at_every_moment(tmp_path):
    timeline = run_of(tmp_path).timeline
    assert (sum(timeline[kind] for kind in palette.KINDS) == CAPACITY).all()


def test_a_latency_spanning_decades_gets_a_logarithmic_axis(three):
    scales = [axes.get_xscale() for axes in plots.latency_figure(three).axes]
    assert scales == ["log", "linear", "log", "log"]


def test_kinds_of_waste_differ_in_lightness():
    def lightness(colour):
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2

    shades = sorted(lightness(palette.KINDS[kind].colour) for kind in palette.WASTE)
    assert np.diff(shades).min() > 0.15


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *(
            (None, "-"),
            (float("nan"), "-"),
            (0, "0"),
            (0.0123456, "0.0123"),
            (1.949, "1.95"),
            (30.42, "30.4"),
        ),
        *((9.996, "10.0"), (99.96, "100"), (1234.5, "1,234"), (-0.5, "-0.500")),
    ],
)
def test_numbers_have_three_significant_figures(value, text):
    assert palette.figures(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0, "0 s"), (0.0315, "31.5 ms"), (0.9996, "1.00 s"), (2.1, "2.10 s")]
)
def test_durations_choose_their_unit(value, text):
    assert palette.seconds(value) == text
