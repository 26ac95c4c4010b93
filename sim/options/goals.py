"""What is asked of a run: limits on its latencies (sim/record/slo.py), and what a GPU costs.

Goals change nothing in a run, only what its summary says of it (sim/record/attainment.py). Every field of
`Goals` is an option of `sim run`, a keyword of `kvsim.simulate` and a row of docs/commands.md.
"""

from dataclasses import dataclass
from math import inf

from kvsim.sim.errors import KvsimError
from kvsim.sim.option import option
from kvsim.sim.record.slo import Slo

PANEL = "Goals"


@dataclass(frozen=True, kw_only=True)
class Goals:
    """What is asked of a run."""

    slo: str | None = option(
        "Latency limits, as in ttft:p99=0.5s,tpot:p99=50ms,e2e=10s.",
        panel=PANEL,
        default=None,
        value="LIMITS",
        shown="none",
        doc="[limits on latencies](output.md#goals), as in `ttft:p99=0.5s,tpot:p99=50ms,e2e=10s`: "
        "the summary also has goodput, attainment and numbers per GPU",
    )
    gpu_price: str | float | None = option(
        "Of a GPU per hour, in any currency; h100=2.5,l40s=0.8 by name.",
        panel=PANEL,
        default=None,
        value="X",
        shown="none",
        doc="price of a GPU per hour, in any currency; `h100=2.5,l40s=0.8`: by GPU; "
        "the summary also has the [cost per million tokens](output.md#goals)",
    )

    def __post_init__(self) -> None:
        if self.slo is not None:
            Slo.parse(self.slo)
        _prices(self.gpu_price)

    @property
    def limits(self) -> Slo | None:
        """The limits; None where there are none."""
        return None if self.slo is None else Slo.parse(self.slo)

    def price_of(self, gpu: str) -> float | None:
        """The price of a GPU of this name per hour; None where none was given.

        Raises
        ------
        KvsimError
            Prices of other GPUs alone.
        """
        prices = _prices(self.gpu_price)
        if not prices:
            return None
        found = prices.get(gpu, prices.get(""))
        if found is None:
            raise KvsimError(f"gpu_price must name {gpu} too, got {self.gpu_price}")
        return found

    def as_json(self) -> dict[str, str]:
        """Those that were given, as texts; nothing if none was."""
        given = {"slo": self.slo, "gpu_price": self.gpu_price}
        return {name: str(value) for name, value in given.items() if value is not None}


def _prices(text: str | float | None) -> dict[str, float]:
    """GPU -> price per hour; "" stands for all others."""
    found: dict[str, float] = {}
    for part in [] if text is None else str(text).split(","):
        gpu, _, amount = part.strip().rpartition("=")
        try:
            price = float(amount)
        except ValueError:
            price = -1.0
        if not 0 <= price < inf:
            raise KvsimError(f"gpu_price must be a number, or GPU=NUMBER,..., per hour, got {text!r}")
        found[gpu] = price
    return found


NO_GOALS = Goals()
