"""The look of figures: for a screen, for a printed paper, for dark slides.

    screen    colour on white
    paper     one print column wide, no background, no headline (the caption has it); lines, bars and kinds of
              memory also differ by dashes, marker or hatch, so they survive grey print
    dark      large type, thick lines, light on near-black

Colour-blind readers can distinguish all colours. The colour of a system depends on its name, see colours.py,
and is the same in every figure. What is no system has one of the duller colours in palette.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvsim.reports import palette
from kvsim.reports.colours import DASHES, Place, places, shaded
from kvsim.reports.palette import KINDS, PLAIN, ROLES, Kind
from kvsim.sim.errors import unknown
from kvsim.sim.options.outputs import Pictures

Dash = str | tuple[int, tuple[float, ...]]

_DASHES: tuple[Dash, ...] = tuple((0, each) if each else "-" for each in DASHES)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
BOTH_COLUMNS_IN = 7.0
_HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++", "----", "oo")


@dataclass(frozen=True)
class Look:
    """The look of one run or system: its line, marker and hatch."""

    colour: str
    dash: Dash
    marker: str
    hatch: str


@dataclass(frozen=True)
class Style:
    """Everything that differs between styles; type sizes and `line` in points."""

    name: str
    width_in: float
    dpi: int
    type_pt: float
    line: float
    ink: str
    muted: str
    grid: str
    background: str
    seam: str  # between the parts of a stack, and for hatch lines
    kinds: Mapping[str, Kind]
    colours: tuple[str, ...]
    plain: tuple[str, ...] = PLAIN
    formats: tuple[str, ...] = ("png",)  # file formats of a saved figure
    headlines: bool = True
    grey_print: bool = False

    @property
    def scale(self) -> float:
        """The factor for heights, which are specified for 10-point type."""
        return self.type_pt / 10

    @property
    def narrow(self) -> bool:
        """Whether panels have no room for more than the data."""
        return self.width_in < 6 * self.scale

    @property
    def wide(self) -> "Style":
        """The style for figures that span two print columns."""
        return replace(self, width_in=BOTH_COLUMNS_IN) if self.narrow else self

    @property
    def small_pt(self) -> float:
        """Type size of legends and notes."""
        return 0.85 * self.type_pt

    @property
    def paper(self) -> str:
        """The background colour, also if no background is drawn."""
        return "white" if self.background == "none" else self.background

    def role(self, name: str) -> Look:
        """The look of something that is no system, one of `ROLES`."""
        return self.other(ROLES[name])

    def other(self, place: int) -> Look:
        """The look of the nth of several things that are no systems; the first two dozen are distinct."""
        shade, hue = divmod(place, len(self.plain))
        return self._look(self.plain, Place(hue, shade))

    def look_at(self, place: Place) -> Look:
        """The look of a system by its hue and shade."""
        return self._look(self.colours, place)

    def _look(self, colours: Sequence[str], place: Place) -> Look:
        """A hue of these and a shade; each shade has its own dashes, marker and hatch."""
        hue, shade = place
        sheet = "#FFFFFF" if self.paper == "white" else self.paper
        own = hue + 3 * shade if self.grey_print else shade
        return Look(
            shaded(colours[hue], shade, sheet),
            _DASHES[own % len(_DASHES)],
            _MARKERS[(hue + shade) % len(_MARKERS)],
            _HATCHES[own % len(_HATCHES)],
        )

    def looks(self, systems: Sequence[Mapping[str, str]]) -> list[Look]:
        """Distinct looks for systems, by the names of their parts."""
        return [self.look_at(place) for place in places(systems)]

    def filled(self, kind: str) -> dict[str, Any]:
        """How matplotlib fills an area of the ledger."""
        look = self.kinds[kind]
        return {"facecolor": look.colour, "hatch": look.hatch, "edgecolor": self.seam}

    @property
    def settings(self) -> dict[str, Any]:
        """The style as matplotlib rcParams."""
        return {
            "font.family": "DejaVu Sans",
            "font.size": self.type_pt,
            "figure.facecolor": self.background,
            "savefig.facecolor": self.background,
            "axes.facecolor": self.background,
            "text.color": self.ink,
            "axes.labelcolor": self.ink,
            "axes.titlecolor": self.ink,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": self.muted,
            "axes.linewidth": 0.55 * self.line,
            "axes.titlesize": self.type_pt,
            "axes.titlelocation": "left",
            "axes.axisbelow": True,
            "xtick.color": self.muted,
            "ytick.color": self.muted,
            "xtick.major.width": 0.55 * self.line,
            "ytick.major.width": 0.55 * self.line,
            "grid.color": self.grid,
            "grid.linewidth": 0.5 * self.line,
            "lines.linewidth": self.line,
            "legend.frameon": False,
            "legend.fontsize": self.small_pt,
            "hatch.linewidth": 0.4 * self.line,
            "text.parse_math": False,
            "svg.hashsalt": "kvsim",
            "pdf.fonttype": 42,  # journals refuse Type 3
        }


def _kinds(colours: Mapping[str, tuple[str, str, str | None]]) -> dict[str, Kind]:
    """The ledger's kinds with other colours, inks and hatches."""
    return {
        kind: replace(KINDS[kind], colour=colour, ink=ink, hatch=hatch)
        for kind, (colour, ink, hatch) in colours.items()
    }


SCREEN = Style(
    name="screen",
    width_in=8.0,  # 1,200 pixels
    dpi=150,
    type_pt=10.0,
    line=1.5,
    ink="black",
    muted="#555555",
    grid="#DDDDDD",
    background="white",
    seam="white",
    kinds=KINDS,
    colours=palette.SERIES,
)
PAPER = Style(
    name="paper",
    width_in=3.33,  # no journal has a narrower print column
    dpi=600,
    type_pt=7.5,
    line=0.9,
    ink="black",
    muted="#333333",
    grid="#D8D8D8",
    background="none",
    seam="#222222",
    kinds=_kinds(
        {
            "token": ("#3D6A94", "white", None),
            "held": ("#A9C4DC", "black", "----"),
            "reserved": ("#FBF3D5", "black", "...."),
            "internal": ("#EFC26B", "black", "////"),
            "external": ("#C9805A", "black", "xxxx"),
            "cached": ("#CFE6DC", "black", "\\\\\\\\"),
            "idle": ("#E3D8EA", "black", "oo"),
            "free": ("#FFFFFF", "black", None),
        }
    ),
    colours=palette.SERIES,
    formats=("pdf",),
    headlines=False,
    grey_print=True,
)
DARK = Style(
    name="dark",
    width_in=10.0,
    dpi=160,
    type_pt=13.0,
    line=2.4,
    ink="#F2F4F7",
    muted="#B4BCC8",
    grid="#333B47",
    background="#12161C",
    seam="#12161C",
    kinds=_kinds(
        {
            "token": ("#4FA8E0", "black", None),
            "held": ("#A7D3F2", "black", "\\\\\\\\"),
            "reserved": ("#F5DF8E", "black", None),
            "internal": ("#EBA62B", "black", "////"),
            "external": ("#D0532B", "white", None),
            "cached": ("#7CCBB0", "black", None),
            "idle": ("#8E5FB0", "white", None),
            "free": ("#39424F", "white", None),
        }
    ),
    colours=("#7173FC", "#E893AA", "#A2F499", "#81EFF6", "#97A127", "#E94C61", "#D75AB5", "#A7A6FB"),
    plain=("#D8D8B4", "#54789C", "#C09C78", "#6CB4C0", "#E4CCD8", "#6C7854", "#A89090", "#547878"),
)
STYLES = {style.name: style for style in (SCREEN, PAPER, DARK)}


def style_named(name: str) -> Style:
    """The style of that name; KvsimError if there is none."""
    if name not in STYLES:
        raise unknown("style", name, list(STYLES))
    return STYLES[name]


def styled(pictures: Pictures) -> Style:
    """The requested style, with the requested formats."""
    style = STYLES[pictures.style]
    return replace(style, formats=pictures.formats or style.formats)
