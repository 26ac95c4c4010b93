"""The figures: they exist in every style, they carry the right numbers, and no run is too small to draw."""

import re
import warnings
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from fake_run import CAPACITY, fake_run
from matplotlib.colors import to_rgb
from PIL import Image

import cli
from reports import figures, palette
from reports.figures import Choices, arena_panel, joined, pieces
from reports.figures.choices import CannotDraw, Latency
from reports.figures.style import DARK, PAPER, SCREEN, STYLES
from reports.labels import told_apart
from reports.memory_map import FILE
from reports.rundir import Run, _write_columns, read_run
from sim.errors import KvsimError

USUAL = ["memory.png", "waste.png", "requests.png", "latency.png"]
OF_ONE = [name for name in figures.FIGURES if name not in ("throughput", "block-size")]


def run_of(path, name=None, **how):
    made = fake_run(**how)
    return Run(path, name or made["summary"]["label"], **made)


def figure_of(name, runs, **choices):
    """A figure as the catalogue draws it, before it is saved."""
    choices = Choices(**choices)
    with matplotlib.rc_context(choices.style.settings):
        return figures.FIGURES[name].draw(runs, choices)


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


def record(directory, rows):
    """A memory map in a directory."""
    names = ("time_s", "start", "size", "owners", "filled", "cached")
    directory.mkdir(exist_ok=True)
    columns = {
        name: np.array(column, dtype=object if name == "owners" else None)
        for name, column in zip(names, zip(*rows, strict=True) if rows else [[]] * 6, strict=True)
    }
    _write_columns(columns, directory / FILE)
    return directory


# -- whatever the runs, a picture or a clear message -----------------------------------------------

EDGES = {
    "no request": [{"requests": 0}],
    "one request": [{"requests": 1}],
    "rejected only": [{"requests": 4, "rejected": 4}],
    "nobody waits": [{"requests": 30, "request_rate": 0.05}],
    "some of each": [{"requests": 50}, {"requests": 0, "seed": 1}, {"requests": 1, "seed": 2}],
    "twelve runs": [
        {"requests": 10, "request_rate": 2**place, "block_size": 2**place} for place in range(12)
    ],
    "no requests, block sizes": [
        {"requests": 0, "block_size": 2**place, "request_rate": 2**place} for place in range(3)
    ],
}
MAPS = {
    "no request": [],
    "one request": [(0.0, 0, 64, "", 0, 0), (1.0, 0, 16, "0", 3, 0), (1.0, 16, 48, "", 0, 0)],
    "rejected only": [(0.0, 0, 1, "", 0, 0)],
}
ROWS = [(0.0, 0, 4096, "7", 100, 0), (0.0, 4096, 512, "7 8.2", 512, 0), (0.0, 4608, 11_136, "", 0, 1)]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", figures.FIGURES)
@pytest.mark.parametrize("case", EDGES)
def test_every_figure_of_every_run_is_a_picture_or_a_clear_message(tmp_path, case, name, style):
    long = "$x_[/b]$ and_a rather long label of a run that nobody shortened" if len(EDGES[case]) > 1 else ""
    runs = []
    for place, how in enumerate(EDGES[case]):
        path = record(tmp_path / str(place), MAPS.get(case, ROWS))
        runs.append(run_of(path, long and f"{place} {long}", **how))
    small = replace(STYLES[style], dpi=40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            (path,) = figures.draw(runs, tmp_path, names=[name], choices=Choices(small))
        except CannotDraw as error:
            assert name in ("throughput", "block-size")
            assert re.search(rf"figure {name} needs runs .*, got {len(runs)} run", str(error))
            return
    with Image.open(path) as picture:
        assert picture.width == 40 * small.width_in
        assert 0.2 * picture.width < picture.height < 3.2 * picture.width


@pytest.mark.parametrize("case", ["no request", "one request", "rejected only"])
def test_a_run_without_rows_says_so(tmp_path, case):
    run = run_of(tmp_path, **EDGES[case][0])
    empty = {name: column[:0] for name, column in run.timeline.items()}
    run = Run(run.path, run.label, run.config, run.summary, run.requests, empty)
    assert "the run took no time: no memory to show" in texts(figure_of("memory", [run]))
    assert "the run took no time: no memory to show" in texts(figure_of("fragmentation", [run]))
    assert "no run took any time: no memory to show" in texts(figure_of("utilisation", [run]))
    assert "no request was ever waiting" in texts(figure_of("requests", [run]))
    if case != "one request":
        assert "no request finished" in texts(figure_of("latency", [run]))


def test_real_runs_that_are_small_or_reject_all_are_drawn(tmp_path):
    few = ["--cost", "constant:0.03", "--no-plots", "-q", "--record-map", "5"]
    for name, how in (("one", ["--num-prompts", "1"]), ("none", ["--num-prompts", "4", "--kv-tokens", "32"])):
        assert cli.main(["run", *few, *how, "--out", str(tmp_path / name)]) == 0
        paths = figures.draw([read_run(tmp_path / name)], tmp_path, names=None)
        assert [path.stem for path in paths] == OF_ONE


# -- the catalogue ---------------------------------------------------------------------------------


def test_the_usual_figures_are_1200_pixels_wide(tmp_path, three):
    paths = figures.draw(three, tmp_path)
    assert [path.name for path in paths] == USUAL
    for path in paths:
        with Image.open(path) as picture:
            assert picture.width == 1200
            assert 300 < picture.height < 1300


def test_without_names_all_that_the_runs_allow_is_drawn(tmp_path):
    paths = figures.draw([run_of(tmp_path)], tmp_path, names=None)
    assert [path.stem for path in paths] == [name for name in OF_ONE if name != "map"]
    rates = [run_of(tmp_path, request_rate=rate) for rate in (1, 2)]
    assert "throughput" in [path.stem for path in figures.draw(rates, tmp_path, names=None)]


def test_what_is_not_there_is_refused(tmp_path):
    runs = [run_of(tmp_path)]
    with pytest.raises(KvsimError, match="figure format must be one of png, svg, pdf, got 'gif'"):
        figures.draw(runs, tmp_path, "gif")
    with pytest.raises(KvsimError, match="at least one"):
        figures.draw([], tmp_path)
    with pytest.raises(KvsimError, match="figure 'wast' is unknown; did you mean 'waste'"):
        figures.draw(runs, tmp_path, names=["memory", "wast"])
    with pytest.raises(
        KvsimError, match=r"figure map needs map.parquet, which --record-map writes; .*: paged"
    ):
        figures.draw(runs, tmp_path, names=["map"])
    with pytest.raises(KvsimError, match="figure map needs"):
        figures.draw(runs, tmp_path, names=None, choices=Choices(at_s=1.0))
    with pytest.raises(KvsimError, match="latency must be left out: no figure throughput or block-size"):
        figures.draw(runs, tmp_path, names=["waste"], choices=Choices(latency=Latency("ttft", "p99")))


@pytest.mark.parametrize(("fmt", "style"), [("png", "screen"), ("svg", "dark"), ("pdf", "paper")])
def test_figures_have_the_same_bytes_twice_and_no_dates(tmp_path, fmt, style):
    runs = [run_of(record(tmp_path / "map", ROWS), request_rate=rate, block_size=rate) for rate in (1, 2)]
    choices = Choices(STYLES[style])
    paths = figures.draw(runs, tmp_path, fmt, None, choices)
    assert [path.stem for path in paths] == list(figures.FIGURES)
    first = [path.read_bytes() for path in paths]
    assert not [
        path.name
        for path, data in zip(paths, first, strict=True)
        if re.search(rb"CreationDate|dc:date", data)
    ]
    assert first == [path.read_bytes() for path in figures.draw(runs, tmp_path, fmt, None, choices)]


# -- styles ----------------------------------------------------------------------------------------


def lightness(colour):
    red, green, blue = (part**2.2 for part in to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("style", STYLES.values(), ids=list(STYLES))
def test_no_two_of_24_runs_look_alike(style):
    assert len({style.look(place) for place in range(24)}) == 24


def test_paper_tells_everything_apart_without_colour(tmp_path):
    looks = [PAPER.look(place) for place in range(8)]
    assert len({str(look.dash) for look in looks}) == len({look.marker for look in looks}) == 8
    assert len({look.hatch for look in looks}) == 8
    kinds = list(PAPER.kinds.values())
    for one in kinds:
        for other in kinds:
            apart = abs(lightness(one.colour) - lightness(other.colour)) > 0.3
            assert one is other or one.hatch != other.hatch or apart
    assert PAPER.background == "none"
    (path,) = figures.draw([run_of(tmp_path)], tmp_path, names=["waste"], choices=Choices(PAPER))
    with Image.open(path) as picture:
        assert picture.getpixel((2, 2))[3] == 0


@pytest.mark.parametrize("style", STYLES.values(), ids=list(STYLES))
def test_text_and_lines_stand_out_from_the_sheet(style):
    def contrast(one, other):
        low, high = sorted((lightness(one), lightness(other)))
        return (high + 0.05) / (low + 0.05)

    assert contrast(style.ink, style.paper) > 12
    assert contrast(style.muted, style.paper) > 4.5
    assert all(contrast(colour, style.paper) > 1.9 for colour in style.colours)
    assert all(contrast(kind.ink, kind.colour) > 3.3 for kind in style.kinds.values())


@pytest.mark.parametrize("style", [SCREEN, DARK], ids=["screen", "dark"])
def test_kinds_of_waste_differ_in_lightness(style):
    shades = sorted(lightness(style.kinds[kind].colour) for kind in palette.WASTE)
    assert np.diff(shades).min() > 0.15


def test_a_run_has_the_same_colour_in_every_figure(three):
    def colours(figure):
        handles = figure.legends[0].legend_handles
        return {handle.get_label(): handle.get_color() for handle in handles}

    expected = {run.label: SCREEN.look(place).colour for place, run in enumerate(three)}
    assert colours(figure_of("utilisation", three)) == colours(figure_of("requests", three)) == expected
    bars = figure_of("batched", three).axes[0].patches
    assert [bar.get_facecolor()[:3] for bar in bars] == [to_rgb(colour) for colour in expected.values()]


def test_papers_have_no_headline_but_say_which_run(three):
    assert figure_of("memory", three, style=PAPER).get_suptitle() == ""
    assert figure_of("memory", three).get_suptitle().startswith("Share of the KV memory")


# -- what single figures say -----------------------------------------------------------------------


def test_the_bars_are_the_saturated_shares_where_requests_waited_and_sum_to_100(three):
    figure = figure_of("waste", three)
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
    for name in ("waste", "batched"):
        figure = figure_of(name, [run])
        assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["paged\n(whole run)"]
    widths = [bar.get_width() for bar in figure_of("waste", [run]).axes[0].patches]
    assert widths == pytest.approx([run.summary["memory"]["average"][kind] for kind in palette.KINDS])


def test_the_headline_and_the_bars_say_the_waste_in_numbers(three):
    wasted = [f"{palette.waste(palette.shares(run.summary)[0]):.1f} %" for run in three]
    said = texts(figure_of("waste", three))
    assert said[0] == f"paged wastes {wasted[2]} of the KV memory, contiguous {wasted[0]}"
    assert {f"{percent} waste" for percent in wasted} <= set(said)


def test_batched_shows_the_mean_while_requests_wait_and_marks_the_most(tmp_path):
    run = run_of(tmp_path, requests=200, label="contiguous")
    assert run.summary["memory"]["saturated_share"] > 0.02
    run.summary["engine"] |= {"mean_running": 11.0, "mean_running_saturated": 17.5, "max_running": 30}
    figure = figure_of("batched", [run])
    assert figure.axes[0].patches[0].get_width() == 17.5
    assert list(figure.axes[0].lines[0].get_xdata()) == [30, 30]
    assert "17.5, at most 30" in texts(figure)


def test_slices_keep_the_time_integral_of_a_step_function():
    time = np.array([0.0, 1.0, 1.5, 4.0, 10.0])
    values = np.array([2.0, 8.0, 0.0, 1.0, 99.0])  # the last row only ends the run
    means, edges = pieces.slice_means(time, values)
    assert (means * np.diff(edges)).sum() == pytest.approx(2 * 1 + 8 * 0.5 + 0 * 2.5 + 1 * 6)
    assert means[0] == pytest.approx(2.0)


def test_the_stack_fills_the_panel_at_every_moment(tmp_path):
    timeline = run_of(tmp_path).timeline
    assert (sum(timeline[kind] for kind in palette.KINDS) == CAPACITY).all()


def test_utilisation_and_fragmentation_are_time_means_of_the_timeline(tmp_path):
    run = run_of(tmp_path)
    columns = {name: np.zeros(3, np.int64) for name in run.timeline} | {"time_s": np.array([0.0, 1.0, 4.0])}
    columns |= {
        "token": np.array([100, 20, 0]),
        "free": np.array([0, 40, 100]),
        "external": np.array([0, 40, 0]),
    }
    columns["largest_free_extent"] = np.array([0, 20, 100])
    run = Run(run.path, run.label, run.config, run.summary, run.requests, columns)
    assert "40.0 % of the KV memory holds tokens" in figure_of("utilisation", [run]).get_suptitle()
    assert (
        "the largest free extent is 25.0 % of what is free"
        in figure_of("fragmentation", [run]).get_suptitle()
    )
    drawn = figure_of("utilisation", [run]).axes[0].lines[0].get_ydata()
    assert (drawn[0], drawn[-1]) == pytest.approx((100, 20))


def test_a_timeline_without_extents_is_refused(tmp_path):
    run = run_of(tmp_path)
    del run.timeline["largest_free_extent"]
    with pytest.raises(CannotDraw, match="largest_free_extent"):
        figure_of("fragmentation", [run])


def test_a_latency_spanning_decades_gets_a_logarithmic_axis(three):
    scales = [axes.get_xscale() for axes in figure_of("latency", three).axes]
    assert scales == ["log", "linear", "log", "log"]


def test_lengths_show_each_workload_once(tmp_path, three):
    one = figure_of("lengths", three)
    assert one.get_suptitle().startswith("made-up: 200 requests, median prompt")
    heights = one.axes[0].patches[1].get_data().values
    assert heights.sum() == pytest.approx(100)
    two = figure_of("lengths", [*three, run_of(tmp_path, "other", seed=3)])
    assert [text.get_text() for text in two.legends[0].get_texts()] == ["contiguous", "other"]


# -- several runs joined ---------------------------------------------------------------------------


def test_runs_are_joined_over_the_rate_and_seeds_are_one_point(tmp_path):
    runs = [
        run_of(tmp_path, label=label, request_rate=rate, seed=seed)
        for label in ("contiguous", "paged")
        for rate in (3, 1, 2)
        for seed in (0, 1)
    ]
    curves = joined.curves(runs, "request_rate")
    assert [(curve.name, curve.place, list(curve.runs)) for curve in curves] == [
        ("contiguous", 0, [1, 2, 3]),
        ("paged", 1, [1, 2, 3]),
    ]
    number = lambda run: run.config["seed"] * 10.0  # noqa: E731
    assert curves[0].points(number) == [(rate, 5, 0, 10) for rate in (1, 2, 3)]
    left, right = figure_of("throughput", runs).axes
    means = [
        np.mean([run.summary["latency"]["normalized_s_per_token"]["mean"] for run in runs[at : at + 2]])
        for at in (2, 4, 0)
    ]
    assert list(left.lines[0].get_xdata()) == [1, 2, 3]
    assert list(left.lines[0].get_ydata()) == pytest.approx(means)
    served = [
        np.mean([run.summary["throughput"]["requests_per_s"] for run in runs[at : at + 2]])
        for at in (2, 4, 0)
    ]
    assert list(right.lines[0].get_xdata()) == pytest.approx(served)


def test_what_else_differs_makes_curves_of_their_own(tmp_path):
    runs = [run_of(tmp_path, request_rate=rate, block_size=size) for size in (16, 32) for rate in (1, 2)]
    assert [curve.name for curve in joined.curves(runs, "request_rate")] == [
        "paged, block size 16",
        "paged, block size 32",
    ]


def test_all_at_once_is_no_rate(tmp_path):
    runs = [run_of(tmp_path, request_rate=rate) for rate in (1, 2)]
    runs[1].config["workload"]["request_rate"] = "inf"
    with pytest.raises(CannotDraw, match=r"got 2 runs with request rates: 1$"):
        figure_of("throughput", runs)
    for place, run in enumerate(runs):
        run.config["workload"] |= {"request_rate": None, "clients": 4 + place}
    assert figure_of("throughput", runs).axes[0].get_xlabel() == "clients"


def test_another_latency_may_be_chosen(tmp_path):
    runs = [run_of(tmp_path, request_rate=2, block_size=size) for size in (8, 16)]
    latency = Latency.parse("ttft:p99")
    axes = figure_of("block-size", runs, latency=latency).axes
    assert list(axes[0].lines[0].get_ydata()) == [run.summary["latency"]["ttft_s"]["p99"] for run in runs]
    assert list(axes[1].lines[0].get_ydata()) == [
        palette.waste(palette.shares(run.summary)[0]) for run in runs
    ]
    assert list(axes[2].lines[0].get_ydata()) == [run.summary["throughput"]["requests_per_s"] for run in runs]
    assert axes[0].get_title("left").replace("\n", " ") == "time to first token, p99 (s)"
    assert Latency.parse("itl") == Latency("itl", "mean")
    with pytest.raises(KvsimError, match="latency 'tfft' is unknown; did you mean 'ttft'"):
        Latency.parse("tfft")
    with pytest.raises(
        KvsimError, match=r"latency must be NAME:STATISTIC with one of mean, p50, .*, got 'ttft:p42'"
    ):
        Latency.parse("ttft:p42")


def test_runs_of_one_label_are_told_apart_by_their_paths(tmp_path):
    def labels(*paths):
        return [run.label for run in told_apart([run_of(tmp_path / path, label) for path, label in paths])]

    assert labels(("a", "paged"), ("b", "buddy")) == ["paged", "buddy"]
    assert labels(("a", "paged"), ("b", "paged")) == ["a", "b"]
    assert labels(("a", "paged"), ("a", "paged")) == ["paged"]
    assert labels(("r1/paged", "paged"), ("r2/paged", "paged")) == ["r1", "r2"]
    assert labels(("r1/paged", "paged"), ("r1/buddy", "buddy"), ("r2/paged", "paged")) == [
        "r1/paged",
        "r1/buddy",
        "r2/paged",
    ]
    assert labels(("four/paged", "paged"), ("other", "paged")) == ["four/paged", "other"]


# -- the memory map --------------------------------------------------------------------------------


def painted(figure, place=0):
    """The rectangles of a panel by the order in which they were painted: (left, right, row) of each."""
    return [
        [(*np.round(path.vertices[:2, 0], 6).tolist(), int(path.vertices[0, 1])) for path in each.get_paths()]
        for each in figure.axes[place].collections
    ]


def test_the_map_folds_ranges_into_rows_and_splits_them_into_filled_and_empty(tmp_path):
    rows = [(0.0, 0, 48, "3", 40, 0), (0.0, 48, 16, "", 0, 1), (0.0, 64, 64, "", 0, 0)]
    run = run_of(record(tmp_path, [*rows, (2.0, 64, 16, "4 3.1", 16, 0), (2.0, 80, 48, "", 0, 0)]))
    frame, cached, empty, full, *_ = painted(figure_of("map", [run], at_s=1.0))
    assert frame == [(0, 16, row) for row in range(8)]
    assert cached == [(0, 16, 3)]
    assert empty == [(8, 16, 2)]
    assert full == [(0, 16, 0), (0, 16, 1), (0, 8, 2)]
    later = figure_of("map", [run], at_s=2.0)
    assert (
        later.get_suptitle()
        == "paged after 2.00 s: 2 requests hold 50.0 % of the KV memory, 43.8 % with tokens"
    )
    dots = later.axes[0].lines[0]
    assert (list(dots.get_xdata()), list(dots.get_ydata())) == ([8], [4.5])
    assert figure_of("map", [run]).get_suptitle() == later.get_suptitle()  # it is the fullest


def test_a_request_has_one_colour_and_its_neighbours_have_others():
    colours = [tuple(colour) for colour in arena_panel.colours_of([str(number) for number in range(40)])]
    assert all(len(set(colours[first : first + 16])) == 16 for first in range(24))
    assert colours[17] == tuple(arena_panel.colours_of(["17.3 2"])[0])


def test_a_damaged_map_is_named(tmp_path):
    record(tmp_path, [(0.0, 0, 0, "", 0, 0)])
    with pytest.raises(KvsimError, match=r"map.parquet is damaged: ranges must have a size"):
        figure_of("map", [run_of(tmp_path)])


@pytest.mark.parametrize("at_s", [-1.0, float("nan"), float("inf")])
def test_an_instant_is_a_number_of_seconds(at_s):
    with pytest.raises(KvsimError, match="at must be at least 0 and finite, in seconds, got"):
        Choices(at_s=at_s)


# -- numbers in words ------------------------------------------------------------------------------


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


def test_a_headline_names_few_runs_and_of_many_the_ends():
    assert pieces.listed(["a", "b"], [1.0, None], palette.figures) == "a 1.00, b -"
    assert pieces.listed(list("abcde"), [3, 1, 2, None, 9], palette.figures) == "1.00 (b) to 9.00 (e)"
    assert pieces.listed(list("abcde"), [None] * 5, palette.figures) == "none"
    assert pieces.listed(list("abcde"), [2] * 5, palette.figures) == "2.00 in all 5 runs"
