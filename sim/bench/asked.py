"""The options of `sim replay`, besides the result and the server."""

from dataclasses import dataclass
from pathlib import Path

from kvsim.sim.option import option
from kvsim.sim.options.outputs import Pictures

PANEL = "Replay"


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Pictures):
    """What to read, fit and change, and where to put pictures."""

    log: Path | None = option(
        "vLLM's start-up log: flags, and the size of the KV cache.",
        panel=PANEL,
        default=None,
        value="FILE",
        shown="none",
    )
    run: int | None = option(
        "Which run of the file, counted from 1.",
        panel=PANEL,
        default=None,
        value="N",
        shown="the last",
    )
    shared_prefix: str | None = option(
        "What prompts begin with: one of G texts of T tokens; none.",
        panel=PANEL,
        default=None,
        value="GxT|none",
        shown="what gives the log's hits",
    )
    fit: str | None = None
    what_if: str | None = option(
        "The same on another server or load: block_size=32, scheduler=sglang, rate_scale=2, clients=32.",
        panel=PANEL,
        default=None,
        value="NAME=VALUE,...",
        shown="none",
    )
    out: Path | None = option(
        "Write the numbers and the requests there, and draw them.",
        panel=PANEL,
        default=None,
        value="DIR",
        shown="no",
    )
    json: bool = option("Print only the numbers, as JSON.", panel=PANEL, default=False)
    force: bool = option("Replace files there that kvsim did not write.", panel=PANEL, default=False)
