"""The user's choices for sweeps.

Fields are options of `sim sweep` and `sim capacity`, and rows of docs/commands.md (option.py).
"""

from dataclasses import dataclass
from pathlib import Path

from kvsim.sim.errors import KvsimError
from kvsim.sim.option import check_allowed, option
from kvsim.sim.options.outputs import FIGURES, Pictures

PANEL = "Sweep"
SEARCH = "Search"

RUN_FAILED, UNMET = 1, 3
"""Exit codes of a sweep: a run failed; no system meets the SLO (if that is to be an error)."""


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where runs are computed."""

    jobs: int | None = option(
        "Parallel processes.", panel=PANEL, default=None, value="N", shown="one per core"
    )
    backend: str = option(
        "This machine, or a cluster of Ray or Dask.",
        panel=PANEL,
        default="local",
        allowed=("local", "ray", "dask"),
        doc="where runs are computed: the processes of this machine, or a cluster of "
        "[Ray or Dask](how-to-size-a-deployment.md#many-machines) (extras `ray`, `dask`)",
    )
    address: str | None = option(
        "Address of the cluster's head or scheduler.",
        panel=PANEL,
        default=None,
        value="HOST:PORT",
        shown="a cluster on this machine",
    )

    def __post_init__(self) -> None:
        check_allowed(self)
        if self.jobs is not None and self.jobs < 1:
            raise KvsimError(f"jobs must be at least 1, got {self.jobs}")


@dataclass(frozen=True, kw_only=True)
class Swept(Pictures):
    """Additional runs of a sweep, and what to do with all of them."""

    seeds: int = option(
        "K runs of each point, with the seeds N, N + 1, ...",
        panel=PANEL,
        default=1,
        value="K",
        doc="K runs of each point, with the seeds N, N + 1, ..., each with other rows of the trace "
        "(`--shuffle off`: the first ones)",
    )
    zip: str | None = option(
        "Combine these lists pairwise, first with first, not in all combinations.",
        panel=PANEL,
        default=None,
        value="[OPTION,...]",
        shown="none",
        doc="options whose lists are combined pairwise, first with first, instead of in all combinations; "
        "`--zip` alone: all lists",
    )
    dry_run: bool = option(
        "Only say how many runs there are and how long they take.",
        panel=PANEL,
        default=False,
        doc="run nothing: say how many runs there are, which are impossible, and about how long they take",
    )
    out: Path | None = option(
        "Directory of the sweep; an existing one is continued.",
        panel=PANEL,
        default=None,
        value="DIR",
        shown="runs/sweep-... by its settings",
    )
    force: bool = option("Start over in that directory.", panel=PANEL, default=False)
    fail_unmet: bool = option("Exit with code 3 if no system meets the SLO.", panel=PANEL, default=False)
    no_plots: bool = option("Draw no figures.", panel=FIGURES, default=False)
    quiet: bool = option(
        "Print only where the results are.",
        panel=PANEL,
        default=False,
        also=("-q",),
        doc="print nothing but the path of the directory",
    )


@dataclass(frozen=True, kw_only=True)
class Sought(Swept):
    """The goal of a capacity search; a sweep's options apply too."""

    seeds: int = option(
        "K searches per system, for the interval.",
        panel=SEARCH,
        default=3,
        value="K",
        doc="K searches per system, with the seeds N, N + 1, ...; they give the interval",
    )
    find: str = option(
        "What to maximise.",
        panel=SEARCH,
        default="rate",
        allowed=("rate", "clients", "rate-scale"),
        doc="what to maximise: requests per second (a trace with its own arrival times is sped up), "
        "clients of a closed loop, or the speed of a trace's own arrivals",
    )
    tolerance: float = option(
        "How close the answer is to the limit, as a share.",
        panel=SEARCH,
        default=0.02,
        value="X",
        doc="the answer is less than this share below a load that misses the SLO",
    )
    for_rate: float | None = option(
        "Also the cheapest fleet for this many requests per second.",
        panel=SEARCH,
        default=None,
        value="R",
        shown="not asked",
        doc="also the fleet of each system that serves R requests per second, the cheapest first (with "
        "`--gpu-price`, else the one with the fewest GPUs); with `--gpu all` among all that fit",
    )
    margin: str = option(
        "How much more than --for-rate the fleet must carry, as in 20%.",
        panel=SEARCH,
        default="0%",
        value="P%",
        doc="how much more than R the fleet must carry, to allow for errors of the clock and the traffic",
    )
    more_kv: float | None = option(
        "How much GIB more of KV memory per GPU would gain.",
        panel=SEARCH,
        default=None,
        value="GIB",
        shown="not asked",
        doc="also how much the answer grows with this many GiB more of KV memory on each GPU",
    )

    def __post_init__(self) -> None:
        check_allowed(self)
        if not 0.0005 <= self.tolerance <= 0.5:
            raise KvsimError(f"tolerance must be a share from 0.0005 to 0.5, got {self.tolerance:g}")
        for name in ("for_rate", "more_kv"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e9:
                raise KvsimError(f"{name} must be above 0, got {value:g}")
        if self.for_rate is not None and self.find != "rate":
            raise KvsimError("for_rate must be left out unless the rate is sought")
        if self.margin_share and self.for_rate is None:
            raise KvsimError(f"margin must be left out without for_rate, got {self.margin}")

    @property
    def margin_share(self) -> float:
        """`20%` -> 0.2."""
        try:
            percent = float(self.margin.removesuffix("%"))
        except ValueError:
            percent = -1.0
        if not (self.margin.endswith("%") and 0 <= percent <= 1000):
            raise KvsimError(f"margin must be a percentage from 0% to 1000%, as in 20%, got {self.margin!r}")
        return percent / 100

    @property
    def rate_to_carry(self) -> float | None:
        """Requests per second that the fleet must serve; None if no rate is given."""
        return None if self.for_rate is None else self.for_rate * (1 + self.margin_share)
