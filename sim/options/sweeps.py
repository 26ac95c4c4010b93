"""How a sweep is carried out, as its user describes it.

Fields are options of `sim sweep` and `sim capacity`, and rows of docs/commands.md (option.py).
"""

from dataclasses import dataclass
from pathlib import Path

from kvsim.sim.errors import KvsimError
from kvsim.sim.options.option import check_allowed, option

PANEL = "Sweep"


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where the runs are computed."""

    jobs: int | None = option(
        "Processes at once.", panel=PANEL, default=None, value="N", shown="one per core"
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
        "Of the cluster's head or scheduler.",
        panel=PANEL,
        default=None,
        value="HOST:PORT",
        shown="a cluster on this machine",
        doc="of the cluster's head (Ray) or scheduler (Dask)",
    )

    def __post_init__(self) -> None:
        check_allowed(self)
        if self.jobs is not None and self.jobs < 1:
            raise KvsimError(f"jobs must be at least 1, got {self.jobs}")


@dataclass(frozen=True, kw_only=True)
class Swept:
    """Which runs a sweep has beside its lists, and what becomes of them."""

    seeds: int = option(
        "K runs of each point, with seeds from --seed on.",
        panel=PANEL,
        default=1,
        value="K",
        doc="K runs of each point, with the seeds N, N + 1, ...",
    )
    zip: str | None = option(
        "Lists that go together, first with first, not in all combinations.",
        panel=PANEL,
        default=None,
        value="[OPTION,...]",
        shown="none",
        doc="options whose lists go together, first with first, instead of in all combinations; "
        "`--zip` alone: all lists",
    )
    dry_run: bool = option(
        "Only say how many runs there are, and for how long.",
        panel=PANEL,
        default=False,
        doc="run nothing: say how many runs there are, which cannot be, and about how long they take",
    )
    out: Path | None = option(
        "Directory of the sweep; one that is there goes on.",
        panel=PANEL,
        default=None,
        value="DIR",
        shown="runs/sweep-... by its settings",
        doc="directory of the sweep; in one that is there it goes on",
    )
    force: bool = option(
        "Begin anew in that directory.", panel=PANEL, default=False, doc="forget the runs that are done there"
    )
    no_plots: bool = option("Draw no figures.", panel=PANEL, default=False)
    quiet: bool = option(
        "Print only where the results are.",
        panel=PANEL,
        default=False,
        also=("-q",),
        doc="print nothing but the path of the directory",
    )
