"""The sheet of a figure: created in a style, and saved so that the same input gives the same bytes."""

import re
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.spines import Spine
from matplotlib.transforms import Bbox

from kvsim.reports.figures.png import png_of
from kvsim.reports.figures.style import Style

_NO_TRACES: dict[str, dict[str, Any]] = {
    "png": {},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}
"""Metadata by format, emptied so that no date or version is stored."""

_UNITS = re.compile(r"(?<=\d) (?=(%|ms|s)(\W|$))")  # keep the number and the unit on one line


@contextmanager
def drawn_in(style: Style) -> Iterator[None]:
    """Draw in a style inside this block, ignoring any `matplotlibrc`.

    Characters that the font lacks are drawn as boxes.
    """
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style.settings)
        yield


class Panel(Axes):
    """Axes that are measured once per layout: the second round reuses their margins."""

    around: tuple[float, float, float, float] | None = None
    """Space for labels and ticks at the left, below, right and above, in pixels; None: not measured."""
    measured: tuple[int, int] = (0, 0)
    """Number of ticks on each axis when it was measured."""

    @property
    def ticks(self) -> tuple[int, int]:
        """Number of ticks on each axis; it depends on the size."""
        return len(self.get_xticks()), len(self.get_yticks())

    def get_tightbbox(self, renderer: Any = None, *more: Any, **kinds: Any) -> Bbox | None:  # noqa: ANN401
        """As in `Axes`; during a layout, from the first round's measurement."""
        if not kinds.get("for_layout_only"):
            return super().get_tightbbox(renderer, *more, **kinds)
        own = self.get_window_extent(renderer)
        if self.around is None:
            beside = [each for each in self.get_default_bbox_extra_artists() if not isinstance(each, Spine)]
            whole = super().get_tightbbox(renderer, *more, bbox_extra_artists=beside, **kinds)
            if whole is not None:
                self.measured = self.ticks
                self.around = own.x0 - whole.x0, own.y0 - whole.y0, whole.x1 - own.x1, whole.y1 - own.y1
            return whole
        left, below, right, above = self.around
        return Bbox.from_extents(own.x0 - left, own.y0 - below, own.x1 + right, own.y1 + above)


ROUND = 9
"""Decimal places of positions in a figure; further digits of the solver vary from run to run."""


class Layout(ConstrainedLayoutEngine):
    """Matplotlib's layout engine, which measures everything twice: a third of the drawing time."""

    def execute(self, fig: Figure) -> Any:  # noqa: ANN401 - Matplotlib's private affair
        """Place everything, discarding earlier measurements; once more if the number of ticks changes."""
        panels = [panel for panel in fig.axes if isinstance(panel, Panel)]
        for _ in range(2):
            for panel in panels:
                panel.around = None
            sized = super().execute(fig)
            if all(panel.measured == panel.ticks for panel in panels):
                break
        for part in fig.subfigs:
            part.bbox_relative.set_points(part.bbox_relative.get_points().round(ROUND))
        for panel in fig.axes:
            counted = panel.get_in_layout()
            place = Bbox(panel.get_position(original=True).get_points().round(ROUND))
            panel.set_position(place)
            panel.set_in_layout(counted)
        return sized


class Sheet(Figure):
    """A figure that notebooks display automatically."""

    def add_subplot(self, *where: Any, **more: Any) -> Axes:  # noqa: ANN401 - as Matplotlib's
        """As in `Figure`; plain axes become a `Panel`."""
        if not {"projection", "polar", "axes_class"} & more.keys():
            more["axes_class"] = Panel
        return super().add_subplot(*where, **more)

    def _repr_png_(self) -> bytes:
        return png_of(self)


def new_sheet(style: Style, height_in: float, headline: str) -> Figure:
    """An empty figure of the style's width; the height is for 10-point type, and less if narrow."""
    size = (style.width_in, height_in * style.scale * (0.85 if style.narrow else 1))
    figure = Sheet(figsize=size, dpi=style.dpi, layout=Layout())
    _say_above(figure, style, headline)
    return figure


def sign(figure: Figure, style: Style, first: str, last: str, *, alone: bool = False) -> None:
    """Put `first` before the headline, or `alone`, and `last` at the foot; on paper the caption has both."""
    if not style.headlines:
        return
    if first:
        _say_above(figure, style, first if alone else f"{first} {figure.get_label()}")
    if last:
        text = wrapped(last, int(style.width_in * 72 / (0.56 * style.small_pt)))
        foot_in = (1.35 * (text.count("\n") + 1) + 0.9) * style.small_pt / 72
        height_in = figure.get_figheight() + foot_in
        figure.set_figheight(height_in)
        figure.set_layout_engine(Layout(rect=(0, foot_in / height_in, 1, 1 - foot_in / height_in)))
        for legend in figure.legends:  # its offset is in units of its own font size
            legend.borderaxespad += 72 * foot_in / legend.prop.get_size_in_points()
        place: Any = {"ha": "left", "va": "bottom", "in_layout": False}
        figure.text(0.012, 0.1 / height_in, text, color=style.muted, fontsize=style.small_pt, **place)


def _say_above(figure: Figure, style: Style, headline: str) -> None:
    figure.set_label(headline)
    if style.headlines:
        pt = 1.15 * style.type_pt
        text = wrapped(_UNITS.sub("\u00a0", headline), int(style.width_in * 72 / (0.63 * pt)))
        figure.suptitle(text, x=0.012, ha="left", fontsize=pt, fontweight="bold")


def draw_picture(  # noqa: PLR0917 - a file, and a figure
    directory: Path,
    name: str,
    style: Style,
    height_in: float,
    headline: str,
    paint: Callable[[Figure, Style], None],
) -> list[Path]:
    """Save a figure drawn by one function; returns the files."""

    def painted() -> Figure:
        figure = new_sheet(style, height_in, headline)
        paint(figure, style)
        return figure

    return save(directory, name, style, painted)


def save(directory: Path, name: str, style: Style, picture: Callable[[], Figure]) -> list[Path]:
    """Draw a figure in this style, once per format; returns the files, `NAME.png` and so on."""
    paths = [directory / f"{name}.{fmt}" for fmt in style.formats]
    for path in paths:
        with drawn_in(style):
            _save(path, picture())
    return paths


def _save(path: Path, figure: Figure) -> None:
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if not axis.get_label_text():  # otherwise every layout computes its position
            axis.set_label_coords(0, 0)
    fmt = path.suffix[1:]
    if fmt == "png":  # lay out once; savefig does it twice
        path.write_bytes(png_of(figure))
    else:
        canvas = import_module(f"matplotlib.backends.backend_{fmt}").FigureCanvas(figure)
        metadata = {"Title": str(figure.get_label()), **_NO_TRACES[fmt]}
        getattr(canvas, f"print_{fmt}")(path, metadata=metadata)


def wrapped(text: str, width: int) -> str:
    """Wrap the text into lines of at most `width` characters."""
    return "\n".join(textwrap.wrap(text, width, break_on_hyphens=False)) or text
