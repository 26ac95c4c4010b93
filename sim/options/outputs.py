"""The user's choices of what to do with results, and how often to repeat a run.

Every field is an option of `sim run` and `sim compare` and a row of docs/commands.md (sim/option.py).
"""

from dataclasses import dataclass
from pathlib import Path

from kvsim.sim.errors import KvsimError
from kvsim.sim.option import check_allowed, option

PANEL, FIGURES = "Output", "Figures"
MOST_SEEDS = 10_000
MAP_INSTANTS = 240
"""Number of instants of the memory map, if none is given."""


STYLES = ("screen", "paper", "dark")
FORMATS = ("png", "svg", "pdf")


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Style and file formats of figures; KvsimError for unknown ones."""

    style: str = option(
        "How figures look.",
        panel=FIGURES,
        default="screen",
        allowed=STYLES,
        doc="for a screen; for a column of print, legible in grey; for dark slides",
    )
    format: str | None = option(
        "What figures are saved as: png, svg, pdf, or several.",
        panel=FIGURES,
        default=None,
        value="KIND,...",
        shown="png; paper: pdf",
    )

    def __post_init__(self) -> None:
        check_allowed(self)
        for each in self.formats:
            if each not in FORMATS:
                raise KvsimError(f"format must be one of {', '.join(FORMATS)}, or several, got {each!r}")

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats, each once, in the given order; empty: whatever suits the style."""
        return () if self.format is None else tuple(dict.fromkeys(self.format.split(",")))


RESULT_FORMATS = ("vllm", "aiperf", "guidellm")
"""Benchmark tools whose results can be written (sim/bench/write.py)."""


@dataclass(frozen=True, kw_only=True)
class Output(Pictures):
    """Where results go, and what else is recorded."""

    out: Path | None = option(
        "Directory for the results.", panel=PANEL, default=None, value="DIR", shown="a new one in runs/"
    )
    no_out: bool = option("Write nothing, only print.", panel=PANEL, default=False)
    force: bool = option(
        "Replace an earlier run in that directory.",
        panel=PANEL,
        default=False,
        doc="replace an earlier run in that directory "
        "([never anything else](output.md#which-files-kvsim-may-replace))",
    )
    json: bool = option(
        "Print only the summary, as JSON.",
        panel=PANEL,
        default=False,
        doc="print only the summary, as JSON; the path of a new directory goes to stderr",
    )
    quiet: bool = option(
        "Print only where the results are.",
        panel=PANEL,
        default=False,
        also=("-q",),
        doc="print nothing but the path of a new directory: `run=$(sim run -q)`",
    )
    no_plots: bool = option("Draw no figures.", panel=FIGURES, default=False)
    step_log: bool = option(
        "Also write steps.parquet, a row per step.",
        panel=PANEL,
        default=False,
        doc="also write `steps.parquet`, a row per step; slower",
    )
    record_map: int | None = option(
        f"Also record the memory map at N instants ({MAP_INSTANTS}), and each request's life.",
        panel=PANEL,
        default=None,
        value="[N]",
        shown="no",
        doc=f"also write `map.parquet`, the memory map at about N instants ({MAP_INSTANTS}), and "
        "`events.parquet`, what happens to each request",
    )
    result_format: str | None = option(
        "Also write the result as a benchmark tool would.",
        panel=PANEL,
        default=None,
        allowed=RESULT_FORMATS,
        shown="no",
        doc="also write the result [as a benchmark tool would](output.md#results-of-benchmark-tools), "
        "each number by that tool's definition",
    )
    live: bool = option(
        "Watch the run in the terminal.",
        panel=PANEL,
        default=False,
        doc="watch the run in the terminal; not with `--seeds`",
    )
    pace: str | None = option(
        "With --live: N simulated seconds per second.",
        panel=PANEL,
        default=None,
        value="Nx",
        shown="as fast as possible",
        doc="with `--live`: N simulated seconds per second, as in `10x`, slow enough to watch",
    )
    step_mode: bool = option(
        "One event per step: slow.",
        panel=PANEL,
        default=False,
        doc="one event per step: slow, with the [same result](engine.md)",
        hidden=True,
    )

    def check(self) -> None:
        """Raise KvsimError for options that exclude each other or are out of range."""
        check_allowed(self)
        if self.record_map is not None and self.record_map < 1:
            raise KvsimError(f"record_map must be at least 1 instant, got {self.record_map}")
        if self.no_out:
            for name in ("out", "force", "step_log", "record_map", "result_format"):
                if getattr(self, name):
                    raise KvsimError(f"{name} must be left out with no_out, which writes nothing")


@dataclass(frozen=True, kw_only=True)
class Seeds:
    """Number of runs, each with different random numbers."""

    seeds: int = option(
        "K runs with the seeds N, N + 1, ...: means and 95 % intervals.",
        panel="Workload",
        default=1,
        value="K",
        doc="K runs, with the seeds N, N + 1, ..., each with other rows of the trace (`--no-shuffle`: the "
        "first ones): [means and 95 % intervals](output.md#several-seeds)",
    )
    jobs: int | None = option(
        "Parallel processes for several seeds.",
        panel="Workload",
        default=None,
        value="N",
        shown="one per core",
        doc="parallel processes for several seeds; they change only the time taken",
    )

    @property
    def several(self) -> bool:
        """Whether there is more than one; KvsimError for impossible values."""
        for name, value in (("seeds", self.seeds), ("jobs", 1 if self.jobs is None else self.jobs)):
            if value < 1:
                raise KvsimError(f"{name} must be at least 1, got {value}")
            if value > MOST_SEEDS:
                raise KvsimError(f"{name} must be at most {MOST_SEEDS:,}, got {value:,}")
        return self.seeds > 1
