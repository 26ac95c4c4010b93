"""The figures: for any runs each is a picture, or says what it needs; and what it shows is true."""

import io
import itertools
import re
import warnings
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image
from support.fake_run import CAPACITY, fake_run

from kvsim import cli
from kvsim.reports import figures, palette
from kvsim.reports.colours import Place, parts_of
from kvsim.reports.figures import Choices, arena_panel, joined, over_time, pieces
from kvsim.reports.figures.catalogue import SOMETIMES
from kvsim.reports.figures.choices import CannotDraw, Latency
from kvsim.reports.figures.png import png_of
from kvsim.reports.figures.style import DARK, PAPER, SCREEN, STYLES, styled
from kvsim.reports.figures.systems import systems
from kvsim.reports.labels import told_apart
from kvsim.reports.memory_map import FILE
from kvsim.reports.rundir.formats import write_columns
from kvsim.reports.rundir.run import Run, Tables, read_runs
from kvsim.reports.seeds.intervals import Interval
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.outputs import Pictures
from kvsim.sim.record.summary import Summary

SINGLE = [name for name in figures.FIGURES if name not in SOMETIMES]
"""The figures of single servers."""

pytestmark = pytest.mark.slow

USUAL = ["memory.png", "waste.png", "requests.png", "latency.png"]
PICKY = {
    "throughput": "two or more request rates",
    "block-size": "two or more block sizes",
    "seeds": "two or more seeds",
    "ranking": "two or more systems",
}
COARSE = {name: replace(style, dpi=30) for name, style in STYLES.items()}


def run_of(path, name=None, **how):
    made = fake_run(**how)
    columns = Tables(made["requests"], made["timeline"])
    return Run(path, name or made["summary"]["label"], made["config"], Summary(made["summary"]), columns)


def figure_of(name, runs, **choices):
    """A figure as drawn by the catalogue, before it is saved."""
    choices = Choices(**choices)
    with matplotlib.rc_context(choices.style.settings):
        return figures.FIGURES[name].draw(systems(runs), choices)


def headline_of(*how, **choices):
    return figure_of(*how, **choices).get_suptitle().replace("\u00a0", " ").replace("\n", " ")


@pytest.fixture
def three(tmp_path):
    return [run_of(tmp_path, label=label, requests=200) for label in ("contiguous", "buddy", "paged")]


def texts(figure):
    """All text of a figure that is not a tick."""
    axes = figure.axes
    found = [text.get_text() for ax in axes for text in (*ax.texts, ax.title, ax.xaxis.label, ax.yaxis.label)]
    legends = [legend for legend in [*figure.legends, *(ax.get_legend() for ax in axes)] if legend]
    found += [text.get_text() for legend in legends for text in legend.get_texts()]
    return [text.replace("\u00a0", " ") for text in (figure.get_suptitle(), *found)]


def record(directory, rows):
    """A memory map in a directory."""
    names = ("time_s", "start", "size", "owners", "filled", "cached", "layers")
    directory.mkdir(exist_ok=True)
    columns = {
        name: np.array(column, dtype=object if name in ("owners", "layers") else None)
        for name, column in zip(names, zip(*rows, strict=True) if rows else [[]] * 6, strict=False)
    }
    write_columns(columns, directory / FILE)
    return directory


ROWS = [(0.0, 0, 4096, "7", 100, 0), (0.0, 4096, 512, "7 8.2", 512, 0), (0.0, 4608, 11_136, "", 0, 1)]


# -- whatever the runs, a picture or a clear message -----------------------------------------------

SHAPES = {
    "one run": ["run"],
    "several runs": ["compare", "--allocator", "contiguous,paged"],
    "several seeds": ["run", "--seeds", "2", "--jobs", "1"],
}
NOTHING_MUCH = {
    "one request": ["--num-prompts", "1"],
    "rejected only": ["--num-prompts", "4", "--kv-tokens", "32"],
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Tiny runs from the command line: (case, shape) -> directory."""
    few = ["--cost", "constant:0.03", "--no-plots", "-q", "--record-map", "5"]
    found = {}
    for case, how in NOTHING_MUCH.items():
        for shape, command in SHAPES.items():
            found[case, shape] = tmp_path_factory.mktemp("run") / "made"
            assert cli.main([*command, *few, *how, "--out", str(found[case, shape])]) == 0
    return found


def empty_runs(tmp_path, shape):
    """Runs without requests; the command line does not make them."""
    hows = {"one run": [{}], "several runs": [{"label": "buddy"}, {}], "several seeds": [{}, {"seed": 1}]}
    rows = [] if shape == "one run" else [(0.0, 0, 1, "", 0, 0)]
    return [
        run_of(record(tmp_path / str(place), rows), requests=0, **how)
        for place, how in enumerate(hows[shape])
    ]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", ["no request", *NOTHING_MUCH])
def test_every_figure_of_hardly_anything_is_a_picture_or_a_clear_message(recorded, tmp_path, case, shape):
    runs = read_runs(recorded[case, shape]) if case in NOTHING_MUCH else empty_runs(tmp_path, shape)
    for name in SINGLE:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                (path,) = figures.draw(runs, tmp_path, names=[name], choices=Choices(COARSE["screen"]))
            except CannotDraw as error:
                assert re.fullmatch(
                    rf"figure {name} needs runs .*{PICKY[name]}.*, got {len(runs)} run.*", str(error)
                )
                continue
        with Image.open(path) as picture:
            assert picture.width == 30 * SCREEN.width_in
            assert len(picture.convert("RGB").getcolors(99_999)) > 20


@pytest.mark.parametrize("shape", SHAPES)
def test_of_rejected_requests_a_figure_says_so_in_one_sentence(recorded, shape):
    runs = read_runs(recorded["rejected only", shape])
    many, by = ("8", "") if "seeds" in shape else ("4", " by both systems" if "runs" in shape else "")
    for name in {*SINGLE} - {*PICKY}:
        said = figures.picture(runs, name, Choices(COARSE["screen"])).get_suptitle().replace("\n", " ")
        alone = re.fullmatch(rf"All {many} requests were rejected{by}: [^.]+\.", said)
        assert alone if name != "lengths" else " median prompt " in said, said


@pytest.mark.parametrize("shape", SHAPES)
def test_a_command_on_hardly_anything_gives_pictures_or_one_line(
    recorded, tmp_path, monkeypatch, capsys, shape
):
    for name, style in COARSE.items():
        monkeypatch.setitem(STYLES, name, style)
    made = str(recorded["rejected only", shape])
    assert cli.main(["plot", made, "--out", str(tmp_path / "all")]) == 0
    drawn = [Path(line).stem for line in capsys.readouterr().out.split()]
    assert sorted({*SINGLE} - {*drawn}) == sorted(
        {*PICKY} - {"seeds" if "seeds" in shape else "ranking" if "runs" in shape else ""}
    )
    assert cli.main(["plot", made, "--figure", "throughput"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: figure throughput needs runs at two or more request rates"
    )


def test_a_run_without_rows_says_so(tmp_path):
    (run,) = empty_runs(tmp_path, "one run")
    empty = {name: column[:0] for name, column in run.columns.timeline.items()}
    run = replace(run, columns=Tables(run.columns.requests, empty))
    assert "the run took no time: no memory to show" in texts(figure_of("memory", [run]))
    assert "the run took no time: no memory to show" in texts(figure_of("fragmentation", [run]))
    assert "no run took any time: no memory to show" in texts(figure_of("utilisation", [run]))
    assert "no request was ever waiting" in texts(figure_of("requests", [run]))
    assert "no request finished" in texts(figure_of("latency", [run]))
    assert "nothing was recorded" in texts(figure_of("map", [run]))


def test_a_ranking_tells_who_serves_nothing_apart_from_the_slowest(tmp_path):
    runs = [run_of(tmp_path, label=label) for label in ("contiguous", "buddy", "paged")]
    assert "none" not in headline_of("ranking", runs)
    runs[0].summary["throughput"]["requests_per_s"] = None
    assert re.fullmatch(
        r"(buddy|paged) finishes .* per second, (buddy|paged) .*; 1 none", headline_of("ranking", runs)
    )
    for run in runs:
        run.summary["throughput"]["requests_per_s"] = None
    assert headline_of("ranking", runs) == "None of them can serve a single request"


# -- every style -----------------------------------------------------------------------------------


def many_runs(tmp_path, how):
    """What a sheet may have to hold: everything about a few runs, or very many runs with long names."""
    if how == "many":
        hows = {f"{at} $x_[/b]$ a long name that nobody cut": {"request_rate": 2**at} for at in range(9)}
    else:
        hows = {
            f"{label}, {rate}, seed {seed}": {
                "label": label,
                "seed": seed,
                "request_rate": rate,
                "block_size": rate,
            }
            for label in ("contiguous", "paged")
            for rate in (1, 8)
            for seed in range(2)
        }
    return [
        run_of(record(tmp_path / str(at), ROWS), name, requests=60, **each)
        for at, (name, each) in enumerate(hows.items())
    ]


def drawn_texts(figure, monkeypatch):
    """All drawn texts, with their extents: left, bottom, right, top."""
    seen = []
    draw = Text.draw

    def noted(text, renderer):
        if text.get_visible() and text.get_text():
            seen.append((text.get_text(), text.get_window_extent(renderer).extents.tolist()))
        draw(text, renderer)

    monkeypatch.setattr(Text, "draw", noted)
    FigureCanvasAgg(figure).draw()
    monkeypatch.undo()
    return seen


@pytest.mark.parametrize(
    ("style", "how"), [*((style, "few") for style in STYLES), ("paper", "many"), ("screen", "many")]
)
def test_no_text_is_cut_and_none_lies_on_another(tmp_path, monkeypatch, style, how):
    runs, drawn = many_runs(tmp_path, how), set()
    for name in SINGLE:
        try:
            figure = figure_of(name, runs, style=replace(STYLES[style], dpi=72))
        except CannotDraw:
            continue
        seen = drawn_texts(figure, monkeypatch)
        (_, _), (right, top) = figure.bbox.get_points()
        for text, (x0, y0, x1, y1) in seen:
            assert x0 > -1 and y0 > -1 and x1 < right + 1 and y1 < top + 1, (name, text)
        for (text, one), (other_text, other) in itertools.combinations(seen, 2):
            apart = min(one[2], other[2]) - max(one[0], other[0]) < 1
            apart |= min(one[3], other[3]) - max(one[1], other[1]) < 2
            assert apart, (name, text, other_text)
        drawn.add(name)
    assert drawn == {*SINGLE} - ({"seeds", "block-size"} if how == "many" else set())


# -- the catalogue ---------------------------------------------------------------------------------


def test_the_usual_figures_are_1200_pixels_wide(tmp_path, three):
    paths = figures.draw(three, tmp_path)
    assert [path.name for path in paths] == USUAL
    for path in paths:
        with Image.open(path) as picture:
            assert picture.width == 1200
            assert 300 < picture.height < 1300


def test_what_is_not_there_is_refused(tmp_path):
    runs = [run_of(tmp_path)]
    with pytest.raises(KvsimError, match="format must be one of png, svg, pdf, or several, got 'gif'"):
        Pictures(format="png,gif")
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


@pytest.mark.parametrize(("face", "mode"), [("#FFCC00", "RGB"), ("none", "RGBA")])
def test_a_png_holds_every_pixel_as_it_was_drawn(face, mode):
    figure = matplotlib.figure.Figure(figsize=(1.01, 0.5), dpi=100, facecolor=face)
    figure.text(0.2, 0.2, "µ", color="#123456")
    read = Image.open(io.BytesIO(png_of(figure)))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    assert read.mode == mode
    assert read.info["dpi"] == pytest.approx((100, 100), rel=1e-3)
    assert np.array_equal(np.asarray(read.convert("RGBA")), np.asarray(canvas.buffer_rgba()))


@pytest.mark.parametrize(
    ("fmt", "names"), [("svg", None), ("png", ["memory", "map"]), ("pdf", ["lengths", "map"])]
)
def test_figures_have_the_same_bytes_twice_and_no_dates(tmp_path, fmt, names):
    style = replace({"png": replace(DARK, dpi=30), "svg": DARK, "pdf": PAPER}[fmt], formats=(fmt,))
    runs = many_runs(tmp_path, "few")
    paths = figures.draw(runs, tmp_path, names, Choices(style))
    assert [path.stem for path in paths] == (names or list(SINGLE))
    first = [path.read_bytes() for path in paths]
    for data in first:
        if fmt == "pdf":
            assert data.startswith(b"%PDF") and data.endswith(b"%%EOF\n")
        elif fmt == "svg":
            assert ElementTree.fromstring(data).tag.endswith("svg")
    dates = re.compile(rb"CreationDate|dc:date")
    assert not [path.name for path, data in zip(paths, first, strict=True) if dates.search(data)]
    assert first == [path.read_bytes() for path in figures.draw(runs, tmp_path, names, Choices(style))]


def test_what_the_layout_solver_adds_behind_nine_digits_changes_no_byte(tmp_path, three, monkeypatch):
    solved, made = ConstrainedLayoutEngine.execute, []
    for nudge in (0, 1e-14, -1e-14):

        def execute(self, fig, nudge=nudge):
            sized = solved(self, fig)
            for axes in fig.axes:
                axes.set_position(Bbox(axes.get_position(original=True).get_points() + nudge))
                axes.set_in_layout(True)
            return sized

        monkeypatch.setattr(ConstrainedLayoutEngine, "execute", execute)
        (path,) = figures.draw(three, tmp_path, ["memory"], Choices(replace(SCREEN, formats=("svg",))))
        made.append(path.read_bytes())
    assert made[0] == made[1] == made[2]


def test_paper_is_a_vector_as_wide_as_a_column_unless_something_else_is_asked_for(tmp_path):
    runs = [run_of(tmp_path)]
    (path,) = figures.draw(runs, tmp_path, names=["waste"], choices=Choices(PAPER))
    width_pt = float(re.search(rb"/MediaBox \[ 0 0 ([0-9.]+) ", path.read_bytes())[1])
    assert path.name == "waste.pdf" and width_pt == pytest.approx(72 * 3.33)
    assert PAPER.small_pt > 6
    style = replace(styled(Pictures(style="paper", format="png,svg")), dpi=30)
    png, svg = figures.draw(runs, tmp_path, ["waste"], Choices(style))
    assert (png.name, svg.name) == ("waste.png", "waste.svg")
    with Image.open(png) as picture:
        assert picture.getpixel((2, 2))[3] == 0  # no background


# -- styles ----------------------------------------------------------------------------------------


def lightness(colour):
    red, green, blue = (part**2.2 for part in to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("style", STYLES.values(), ids=list(STYLES))
def test_no_two_of_24_runs_look_alike(style):
    assert len({style.other(place) for place in range(24)}) == 24
    assert len({style.look_at(Place(hue, shade)) for hue in range(8) for shade in range(3)}) == 24


def test_paper_tells_everything_apart_without_colour():
    looks = [PAPER.other(place) for place in range(8)]
    assert len({str(look.dash) for look in looks}) == len({look.marker for look in looks}) == 8
    assert len({look.hatch for look in looks}) == 8
    kinds = list(PAPER.kinds.values())
    for one in kinds:
        for other in kinds:
            apart = abs(lightness(one.colour) - lightness(other.colour)) > 0.3
            assert one is other or one.hatch != other.hatch or apart


@pytest.mark.parametrize("style", STYLES.values(), ids=list(STYLES))
def test_text_and_lines_stand_out_from_the_sheet(style):
    def contrast(one, other):
        low, high = sorted((lightness(one), lightness(other)))
        return (high + 0.05) / (low + 0.05)

    assert contrast(style.ink, style.paper) > 12
    assert contrast(style.muted, style.paper) > 4.5
    least = {"screen": 2.2, "paper": 2.6, "dark": 4.5}[style.name]
    assert all(contrast(colour, style.paper) > least for colour in style.colours)
    assert all(contrast(kind.ink, kind.colour) > 3.3 for kind in style.kinds.values())


BLIND = {  # Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


def seen_as(colour, blindness):
    """CIE L*a*b* of a colour as seen by such eyes."""
    linear = np.clip(np.array(BLIND[blindness]) @ np.array(to_rgb(colour)) ** 2.2, 0, 1)
    to_xyz = np.array([[0.434, 0.376, 0.190], [0.213, 0.715, 0.072], [0.018, 0.109, 0.873]])  # by white
    x, y, z = np.cbrt(to_xyz @ linear)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("blindness", BLIND)
@pytest.mark.parametrize("style", STYLES.values(), ids=list(STYLES))
def test_colour_blind_eyes_tell_all_systems_and_kinds_apart(style, blindness):
    kinds = [] if style.grey_print else [look.colour for look in style.kinds.values()]
    for colours in (style.colours, kinds):
        seen = [seen_as(colour, blindness) for colour in colours]
        assert all(np.linalg.norm(a - b) > 10 for a, b in itertools.combinations(seen, 2))


@pytest.mark.parametrize("style", [SCREEN, DARK], ids=["screen", "dark"])
def test_kinds_of_waste_differ_in_lightness(style):
    shades = sorted(lightness(style.kinds[kind].colour) for kind in palette.WASTE)
    assert np.diff(shades).min() > 0.15


def test_a_run_has_the_same_colour_in_every_figure(three):
    def colours(figure):
        handles = figure.legends[0].legend_handles
        return {handle.get_label(): handle.get_color() for handle in handles}

    looks = SCREEN.looks([parts_of(run.config) for run in three])
    expected = {run.label: look.colour for run, look in zip(three, looks, strict=True)}
    assert colours(figure_of("utilisation", three)) == colours(figure_of("requests", three)) == expected
    bars = figure_of("batched", three).axes[0].patches
    assert [bar.get_facecolor()[:3] for bar in bars] == [to_rgb(colour) for colour in expected.values()]


def test_papers_have_no_headline_but_say_which_run(three):
    assert figure_of("memory", three, style=PAPER).get_suptitle() == ""
    assert figure_of("memory", three).get_suptitle().startswith("Share of the KV memory")


# -- what single figures say -----------------------------------------------------------------------


def test_the_bars_are_the_saturated_shares_where_all_had_requests_waiting_and_sum_to_100(three):
    saturated = [run for run in three if run.summary["memory"]["saturated_share"] >= 0.02]
    assert 0 < len(saturated) < len(three)
    for runs, part, when in (
        (saturated, "saturated", "while requests wait"),
        (three, "average", "over the whole run"),
    ):
        axes = figure_of("waste", runs).axes[0]
        assert axes.get_xlabel() == f"share of the KV memory, mean {when}"
        kinds = palette.kinds_of(run.summary for run in runs)
        for row, run in enumerate(runs):
            bars = axes.patches[row * len(kinds) : (row + 1) * len(kinds)]
            shares = [run.summary["memory"][part][kind] for kind in kinds]
            widths = [bar.get_width() for bar in bars]
            assert widths == pytest.approx(shares)
            assert sum(widths) == pytest.approx(100)


def test_a_run_in_which_nobody_waited_shows_its_average(tmp_path):
    run = run_of(tmp_path, requests=30, request_rate=0.05)
    assert run.summary["memory"]["saturated"] is None
    bars = figure_of("waste", [run]).axes[0]
    assert bars.get_xlabel() == "share of the KV memory, mean over the whole run"
    widths = [bar.get_width() for bar in bars.patches]
    kinds = palette.kinds_of([run.summary])
    assert widths == pytest.approx([run.summary["memory"]["average"][kind] for kind in kinds])


def test_the_headline_and_the_bars_say_the_waste_in_numbers(three):
    wasted = [f"{palette.waste(palette.whole_run(run.summary)):.1f} %" for run in three]
    said = texts(figure_of("waste", three))
    assert said[0] == f"paged wastes {wasted[2]} of the KV memory, contiguous {wasted[0]}, over the whole run"
    assert {f"{percent} waste" for percent in wasted} <= set(said)


def test_runs_that_are_alike_have_no_first_among_them(three):
    run = three[2]
    assert texts(figure_of("waste", [run, run]))[0].startswith("paged and paged both waste ")
    assert texts(figure_of("batched", [run, run, run]))[0].startswith("All 3 compute ")
    assert texts(figure_of("ranking", [run, run]))[0].startswith("paged and paged both finish ")


def test_batched_shows_the_same_mean_of_all_runs_and_marks_the_most(tmp_path, three):
    run = three[0]
    assert run.summary["memory"]["saturated_share"] > 0.02
    run.summary["engine"].update({"mean_running": 11.0, "mean_running_saturated": 17.5, "max_running": 30})
    figure = figure_of("batched", [run])
    assert figure.axes[0].patches[0].get_width() == 17.5
    assert list(figure.axes[0].lines[0].get_xdata()) == [30, 30]
    assert "17.5, at most 30" in texts(figure)
    calm = run_of(tmp_path, requests=30, request_rate=0.05)
    bars = figure_of("batched", [run, calm]).axes[0]
    assert [bar.get_width() for bar in bars.patches] == [11.0, calm.summary["engine"]["mean_running"]]
    assert bars.get_xlabel() == "requests computed at once, mean of the run"


def test_slices_keep_the_time_integral_of_a_step_function():
    time = np.array([0.0, 1.0, 1.5, 4.0, 10.0])
    values = np.array([2.0, 8.0, 0.0, 1.0, 99.0])  # the last row only ends the run
    means, edges = over_time.slice_means(time, values)
    assert (means * np.diff(edges)).sum() == pytest.approx(2 * 1 + 8 * 0.5 + 0 * 2.5 + 1 * 6)
    assert means[0] == pytest.approx(2.0)
    longer, edges = over_time.slice_means(time, values, end=20.0)
    assert (longer * np.diff(edges)).sum() == pytest.approx(2 * 1 + 8 * 0.5 + 0 * 2.5 + 1 * 6)
    assert longer[-1] == 0 and edges[-1] == 20


def test_the_stack_fills_the_panel_at_every_moment(tmp_path):
    run = run_of(tmp_path)
    timeline = run.columns.timeline
    assert (sum(timeline[kind] for kind in palette.kinds_of([run.summary])) == CAPACITY).all()


def test_utilisation_and_fragmentation_are_time_means_of_the_timeline(tmp_path):
    run = run_of(tmp_path)
    columns = {name: np.zeros(3, np.int64) for name in run.columns.timeline}
    columns |= {
        "time_s": np.array([0.0, 1.0, 4.0]),
        "token": np.array([100, 20, 0]),
        "free": np.array([0, 40, 100]),
        "external": np.array([0, 40, 0]),
    }
    columns["largest_free_extent"] = np.array([0, 20, 100])
    run = replace(run, columns=Tables(run.columns.requests, columns))
    said = (
        f"{run.summary['memory']['average']['token']:.1f} % of the KV memory holds tokens over the whole run"
    )
    assert said in headline_of("utilisation", [run])
    assert "the largest free extent is 25.0 % of what is free" in headline_of("fragmentation", [run])
    drawn = figure_of("utilisation", [run]).axes[0].lines[0].get_ydata()
    assert (drawn[0], drawn[-1]) == pytest.approx((100, 20))


def test_a_timeline_without_extents_is_refused(tmp_path):
    run = run_of(tmp_path)
    del run.columns.timeline["largest_free_extent"]
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
    two = figure_of("lengths", [*three, run_of(tmp_path, "other", seed=3, request_rate=3)])
    assert [text.get_text() for text in two.legends[0].get_texts()] == ["contiguous", "other"]


# -- several seeds ---------------------------------------------------------------------------------


def seeds_of(path, label="paged", count=3, **how):
    return [run_of(path, f"{label}, seed {seed}", label=label, seed=seed, **how) for seed in range(count)]


def test_runs_that_differ_in_nothing_but_the_seed_are_one_system(tmp_path):
    runs = [*seeds_of(tmp_path), *seeds_of(tmp_path, "buddy", 2), run_of(tmp_path, "alone", request_rate=9)]
    found = systems(runs)
    assert [(each.name, len(each.runs)) for each in found] == [("paged", 3), ("buddy", 2), ("alone", 1)]
    twice = systems(
        [run_of(tmp_path, "one"), run_of(tmp_path, "other", request_rate=9), run_of(tmp_path, "again")]
    )
    assert [each.name for each in twice] == ["one", "other", "again"]


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        (["paged, seed 0", "paged, seed 1"], "paged"),
        (["five/seed-0/paged", "five/seed-1/paged"], "five/paged"),
        (["five/seed-0", "five/seed-1"], "five"),
        (["seed-0/paged", "seed-1/paged"], "paged"),
        (["rate-2-a", "rate-2-b"], "rate-2"),
        (["first", "second"], "paged"),
    ],
)
def test_a_system_is_called_by_what_its_runs_have_in_common(tmp_path, labels, name):
    (found,) = systems([run_of(tmp_path, label, seed=seed) for seed, label in enumerate(labels)])
    assert found.full_name == name


def test_bars_of_seeds_are_means_with_their_interval(tmp_path):
    runs = seeds_of(tmp_path, "contiguous", 2)
    for run, at_once, waste in zip(runs, (4.0, 6.0), (30.0, 34.0), strict=True):
        run.summary["engine"].update(
            {
                "mean_running": at_once,
                "mean_running_saturated": at_once,
                "max_running": at_once,
            }
        )
        run.summary["memory"]["saturated"].update({"token": 100 - waste, "internal": waste})
        run.summary["memory"]["saturated"].update(
            dict.fromkeys(("reserved", "external", "cached", "free"), 0.0)
        )
    figure = figure_of("batched", runs)
    assert figure.axes[0].patches[0].get_width() == 5
    whisker = figure.axes[0].lines[0].get_xdata()  # t(1) = 12.706, s / sqrt(2) = 1; nothing is below 0
    assert list(whisker) == pytest.approx([0, 5 + 12.706], abs=1e-3)
    assert "5 ± 13, at most 6" in texts(figure)
    assert headline_of("waste", runs) == "contiguous wastes 32 ± 25 % of the KV memory while requests wait"


def test_curves_of_seeds_are_their_mean_in_a_band_from_the_least_to_the_most(tmp_path):
    runs = seeds_of(tmp_path, count=2, requests=30)
    for run, many in zip(runs, (2, 6), strict=True):
        run.columns.timeline["running"] = np.full_like(run.columns.timeline["running"], many)
    curve = over_time.Curve.of(systems(runs)[0], lambda run: run.columns.timeline["running"])
    both = min(over_time.duration(run) for run in runs)
    early = curve.middle < 0.95 * both
    assert {*curve.mean[early].round(9)} == {4} and {*curve.least[early].round(9)} == {2}
    assert curve.least[-1] == 0  # the shorter run has ended
    axes = figure_of("requests", runs).axes[0]
    assert len(axes.lines) == len(axes.collections) == 1


def test_panels_show_the_first_seed_and_say_so(tmp_path):
    figure = figure_of("memory", [*seeds_of(tmp_path), *seeds_of(tmp_path, "buddy")])
    assert len(figure.axes) == 2
    assert figure.axes[1].get_xlabel() == "time (s), seed 0 (of 3 seeds)"


def test_a_curve_that_covers_another_is_dashed(tmp_path):
    runs = [run_of(tmp_path, label, label=label) for label in ("contiguous", "paged")]
    for run in runs:
        run.columns.timeline["running"], run.columns.timeline["waiting"] = (
            runs[0].columns.timeline[each] for each in ("running", "waiting")
        )
        run.columns.timeline["time_s"] = runs[0].columns.timeline["time_s"]
    above, below = (line.get_linestyle() for line in figure_of("requests", runs).axes[0].lines)
    assert (above, below) == ("-", "--")


# -- several runs joined ---------------------------------------------------------------------------


def test_runs_are_joined_over_the_rate_and_seeds_are_one_point_with_its_interval(tmp_path):
    runs = [
        run_of(tmp_path, label=label, request_rate=rate, seed=seed)
        for label in ("contiguous", "paged")
        for rate in (3, 1, 2)
        for seed in (0, 1)
    ]
    curves = joined.curves(runs, "request_rate")
    assert [(curve.name, list(curve.runs)) for curve in curves] == [
        ("contiguous", [1, 2, 3]),
        ("paged", [1, 2, 3]),
    ]
    points = curves[0].points(lambda run: run.config["workload"]["seed"] * 2.0)
    assert [(x, found.mean, round(found.high, 3)) for x, found in points] == [
        (rate, 1, 13.706)  # t(1) = 12.706, s / sqrt(2) = 1
        for rate in (1, 2, 3)
    ]
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


@pytest.mark.parametrize(
    ("part", "choice", "values"),
    [
        ("scenario", "num_gpu_blocks", (500, 1_000)),
        ("scenario", "kv_tokens", (8_000, 16_000)),
        ("scenario", "gpu_memory_utilization", (0.8, 0.9)),
        ("workload", "num_prompts", (100, 200)),
        ("workload", "start", (0.0, 600.0)),
        ("workload", "duration", (None, 600.0)),
        ("workload", "some_later_option", ("a", "b")),
    ],
)
def test_runs_that_differ_in_anything_but_the_seed_are_never_averaged(tmp_path, part, choice, values):
    runs = [run_of(tmp_path, request_rate=rate, seed=seed) for seed in (0, 1) for rate in (1, 2)]
    for run in runs:
        run.config[part][choice] = values[run.config["workload"]["seed"]]
    curves = joined.curves(runs, "request_rate")
    assert len(curves) == 2
    assert all(len(at) == 1 for curve in curves for at in curve.runs.values())
    assert len(systems(runs)) == 4


def test_models_and_profiles_of_one_name_that_differ_are_apart(tmp_path):
    runs = [run_of(tmp_path, request_rate=rate, seed=rate) for rate in (1, 2, 1, 2)]
    for run, layers in zip(runs, (10, 10, 20, 20), strict=True):
        run.config["scenario"]["model"] = {"name": "mine", "layers": layers}
    assert [c.name for c in joined.curves(runs, "request_rate")] == [
        "paged, model layers 10",
        "paged, model layers 20",
    ]
    for run, name in zip(runs, ("a", "a", "b", "b"), strict=True):
        run.config["scenario"]["model"]["name"] = name
    assert [c.name for c in joined.curves(runs, "request_rate")] == ["paged, model a", "paged, model b"]
    for run, device in zip(runs, ("x", "x", "x", "y"), strict=True):
        run.config["scenario"] |= {"model": {"name": "a", "layers": 10}, "profile": {"points": [device]}}
    assert len(joined.curves(runs, "request_rate")) == 2


def test_a_run_that_is_there_twice_is_no_second_seed(tmp_path):
    runs = [run_of(tmp_path, request_rate=rate, seed=0) for rate in (1, 2, 2)]
    (curve,) = joined.curves(runs, "request_rate")
    assert [len(at) for at in curve.runs.values()] == [1, 1]


def test_longer_samples_at_higher_rates_are_one_curve(tmp_path):
    runs = [run_of(tmp_path, request_rate=rate) for rate in (1, 2)]
    for run, rate in zip(runs, (1, 2), strict=True):
        run.config["workload"]["num_prompts"] = 100 * rate
    (curve,) = joined.curves(runs, "request_rate")
    assert list(curve.runs) == [1, 2]


def test_one_memory_in_other_blocks_is_one_curve_and_another_memory_is_not(tmp_path):
    runs = [run_of(tmp_path, request_rate=2, block_size=size) for size in (8, 16)]
    for run, blocks in zip(runs, (2_000, 1_000), strict=True):
        run.config["scenario"]["num_gpu_blocks"] = blocks
    assert len(joined.curves(runs, "block_size")) == 1
    runs[0].config["scenario"]["num_gpu_blocks"] = 1_000
    assert len(joined.curves(runs, "block_size")) == 2


def test_the_headline_compares_curves_at_the_highest_load_that_all_had(tmp_path):
    runs = [run_of(tmp_path, label="contiguous", request_rate=rate) for rate in (1, 2)]
    runs += [run_of(tmp_path, request_rate=rate) for rate in (1, 2, 4)]
    for run, served in zip(runs, (0.9, 1.1, 0.95, 1.9, 3.0), strict=True):
        run.summary["throughput"]["requests_per_s"] = served
    assert headline_of("throughput", runs) == (
        "Requests served per second when 2 come: contiguous 1.10, paged 1.90"
    )
    apart = [runs[0], *runs[3:]]
    assert headline_of("throughput", apart) == "Curves without a common load: contiguous, paged"


def test_figures_rank_no_runs_of_different_loads(tmp_path):
    runs = [run_of(tmp_path, request_rate=rate, name=f"at {rate}") for rate in (1, 6)]
    assert headline_of("batched", runs).startswith("Requests computed at once, under different loads: at 1 ")
    assert headline_of("waste", runs).startswith("KV memory wasted ")
    assert ", under different loads: at 1 " in headline_of("waste", runs)
    for figure in ("latency", "requests", "memory", "fragmentation"):
        assert ", under different loads: " in headline_of(figure, runs), figure
    for run in runs:
        assert "times as many" not in headline_of("batched", runs)
        run.config["workload"]["request_rate"] = 1
    assert "times as many as" in headline_of("batched", runs)


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
    shares, _ = palette.shares_of_all([run.summary for run in runs])
    assert list(axes[1].lines[0].get_ydata()) == list(map(palette.waste, shares))
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
    """The rectangles of a panel in the order of painting: (left, right, row) of each."""
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
    said = "paged after 2.00 s: 2 requests hold 50.0 % of the KV memory, 43.8 % with tokens"
    assert headline_of("map", [run], at_s=2.0) == headline_of("map", [run]) == said  # it is the fullest
    dots = later.axes[0].lines[0]
    assert (list(dots.get_xdata()), list(dots.get_ydata())) == ([8], [4.5])


POOLS = [(0.0, 0, 64, "", 0, 0, "full"), (0.0, 64, 512, "", 0, 0, "window 8")]


def test_pools_of_unlike_layers_are_drawn_apart_each_on_its_own_scale(tmp_path):
    held = [(1.0, 0, 32, "3", 32, 0, "full"), (1.0, 32, 32, "", 0, 0, "full")]
    held += [(1.0, 64, 128, "3", 100, 0, "window 8"), (1.0, 192, 384, "", 0, 0, "window 8")]
    run = run_of(record(tmp_path, [*POOLS, *held, *[(2.0, *row[1:]) for row in POOLS]]))
    figure = figure_of("map", [run])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["full: 50.0 %", "window 8: 25.0 %"]
    assert painted(figure, 0)[1] == [(0, 8, row) for row in range(4)]  # the full pool, in rows of 8
    assert painted(figure, 1)[0] == [(0, 64, row) for row in range(8)]


def test_layers_that_share_an_arena_are_drawn_together_with_what_each_holds(tmp_path):
    rows = [
        (0.0, 0, 100, "", 0, 0, ""),
        (1.0, 0, 30, "3", 30, 0, "full"),
        (1.0, 30, 50, "3", 50, 0, "states"),
    ]
    run = run_of(record(tmp_path, [*rows, (1.0, 80, 20, "", 0, 0, ""), (2.0, 0, 100, "", 0, 0, "")]))
    (axes,) = figure_of("map", [run]).axes
    assert axes.get_title(loc="left") == "full: 30.0 %, states: 50.0 %"
    assert headline_of("map", [run]).endswith("1 request holds 80.0 % of the KV memory, 80.0 % with tokens")


def test_a_request_has_one_colour_and_its_neighbours_have_others():
    colours = [tuple(colour) for colour in arena_panel.colours_of([str(number) for number in range(40)])]
    assert all(len(set(colours[first : first + 16])) == 16 for first in range(24))
    assert colours[17] == tuple(arena_panel.colours_of(["17.3 2"])[0])


@pytest.mark.parametrize("replicas", [2, 4, 16, 64])
def test_requests_of_one_replica_have_different_colours_and_so_have_neighbours(replicas):
    for step in (1, replicas):
        numbers = [str(3 + step * each) for each in range(16)]
        colours = [tuple(colour) for colour in arena_panel.colours_of(numbers, replicas)]
        assert all(one != other for one, other in itertools.pairwise(colours))
        assert step == 1 or len(set(colours)) == 16


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
    def listed(names, values):
        found = [None if value is None else Interval(value, value, value, fixed=True) for value in values]
        return pieces.listed(names, found, palette.figures)

    assert listed(["a", "b"], [1.0, None]) == "a 1.00, b -"
    assert listed(list("abcde"), [3, 1, 2, None, 9]) == "1.00 (b) to 9.00 (e)"
    assert listed(list("abcde"), [None] * 5) == "none"
    assert listed(list("abcde"), [2] * 5) == "2.00 in all 5"
    assert (
        pieces.listed(["a", "b"], [Interval(10, 8, 12), None], palette.seconds)
        == "a 10.0\u00a0±\u00a02.0\u00a0s, b -"
    )
