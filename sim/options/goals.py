"""Goals for a run: limits on its latencies (sim/record/slo.py), and what a GPU costs.

Goals do not change a run, only what its summary reports (sim/record/attainment.py). Every field of `Goals` is
an option of `sim run`, a keyword of `kvsim.simulate` and a row of docs/commands.md.
"""

import tomllib
from dataclasses import dataclass
from importlib import resources
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

from kvsim.sim.deployment.host_memory import host_gib
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.reading import text_of, understood
from kvsim.sim.option import check_kinds, option
from kvsim.sim.record.slo import Slo

if TYPE_CHECKING:
    from kvsim.sim.deployment.deployment import Deployment

PANEL = "Goals"
LISTED = "listed"
"""Selects the prices that ship with kvsim."""
SHIPPED = resources.files("kvsim.sim.models").joinpath("prices.toml")


@dataclass(frozen=True, kw_only=True)
class Goals:
    """Goals for a run."""

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
        "Price of a GPU per hour, in any currency; h100=2.5,l40s=0.8 by name.",
        panel=PANEL,
        default=None,
        value="X",
        shown="none",
        doc="price of a GPU per hour, in any currency; by GPU: `h100=2.5,l40s=0.8`; from a file like "
        "[prices.toml](https://github.com/kvsim/kvsim/blob/main/sim/models/prices.toml), or `listed` for "
        "that one; the summary also has the [cost per million tokens](output.md#goals)",
    )

    host_price: float | None = option(
        "Price of a GiB of host memory per hour, in the same currency.",
        panel=PANEL,
        default=None,
        value="X",
        least=0,
        shown="none",
        doc="price of a GiB of [host memory below the GPU's](tiers.md#what-it-costs) per hour, in the "
        "currency of `gpu_price` and added to it",
    )

    def __post_init__(self) -> None:
        check_kinds(vars(self), get_type_hints(Goals))
        if self.host_price is not None:
            if not 0 <= self.host_price < inf:
                raise KvsimError(f"host_price must be at least 0 and finite, got {self.host_price:g}")
            if self.gpu_price is None:
                raise KvsimError("host_price must be left out without gpu_price, to which it is added")
        if self.slo is not None:
            Slo.parse(self.slo)
        _prices(self.gpu_price)

    @property
    def prices(self) -> dict[str, float]:
        """GPU -> price per hour; "" for all other GPUs."""
        return _prices(self.gpu_price)

    @property
    def prices_from(self) -> str:
        """The file of the prices, with its date and currency, or ""."""
        text = str(self.gpu_price or "")
        return _file(text)[1] if text == LISTED or text.endswith(".toml") else ""

    @property
    def limits(self) -> Slo | None:
        """The limits; None if there are none."""
        return None if self.slo is None else Slo.parse(self.slo)

    def price_of(self, gpu: str) -> float | None:
        """The price per hour of the GPU of this name; None if none was given.

        Raises
        ------
        KvsimError
            Only other GPUs have prices.
        """
        prices = _prices(self.gpu_price)
        if not prices:
            return None
        found = prices.get(gpu, prices.get(""))
        if found is None:
            raise KvsimError(f"gpu_price must name {gpu} too, got {self.gpu_price}")
        return found

    def price_of_server(self, server: "Deployment") -> float | None:
        """The price per hour of one GPU of a server, including its share of the host memory below it."""
        return self.with_host(self.price_of(server.gpu.name), host_gib(server) / server.gpus)

    def with_host(self, price: float | None, gib: float) -> float | None:
        """A GPU's price per hour, plus the price of `gib` GiB of host memory."""
        return None if price is None else price + (self.host_price or 0.0) * gib

    def as_json(self) -> dict[str, str]:
        """The goals that were given, in JSON types; empty if none were."""
        given = {"slo": self.slo, "gpu_price": self.gpu_price, "host_price": self.host_price}
        return {name: str(value) for name, value in given.items() if value is not None}


def _prices(text: str | float | None) -> dict[str, float]:
    found: dict[str, float] = {}
    if isinstance(text, str) and (text == LISTED or text.endswith(".toml")):
        return _file(text)[0]
    for part in [] if text is None else str(text).split(","):
        gpu, _, amount = part.strip().rpartition("=")
        try:
            price = float(amount)
        except ValueError:
            price = -1.0
        if not 0 <= price < inf:
            must = "a number, GPU=NUMBER,..., listed, or a file that ends with .toml"
            raise KvsimError(f"gpu_price must be {must}, per hour, got {text!r}")
        found[gpu] = price
    return found


def _file(text: str) -> tuple[dict[str, float], str]:
    """The prices in a file like prices.toml, and their origin."""
    path = SHIPPED if text == LISTED else Path(text)
    with understood(f"prices {path}", "are no prices per hour by GPU"):
        content = SHIPPED.read_text("utf-8") if text == LISTED else text_of(Path(text), f"prices {text}")
        said = tomllib.loads(content)
        prices = {name: float(gpu["per_hour"]) for name, gpu in said.items() if isinstance(gpu, dict)}
    for name, price in prices.items():
        if not 0 <= price < inf:
            raise KvsimError(f"per_hour of {name} must be at least 0 and finite, got {price:g} in {path}")
    about = ", ".join(str(said[name]) for name in ("currency", "date") if name in said)
    return prices, f"{'listed prices' if text == LISTED else path.name}{f' ({about})' if about else ''}"


NO_GOALS = Goals()
