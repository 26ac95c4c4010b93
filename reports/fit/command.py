"""Run `sim fit`: compute the answer for every model and GPU, print it, draw it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from kvsim.reports.fit.tables import fit_report
from kvsim.sim.cost.profile_files import gpu_and_cost
from kvsim.sim.errors import KvsimError
from kvsim.sim.fit.answer import Fit, fitted
from kvsim.sim.fit.asked import FitOptions
from kvsim.sim.fit.log import read_log
from kvsim.sim.fit.log_terms import as_logged, explain, settings_in
from kvsim.sim.fit.what_if import what_ifs
from kvsim.sim.models.catalog import model_named
from kvsim.sim.options.outputs import Pictures


@dataclass(frozen=True, kw_only=True)
class FitOutput(Pictures):
    """Where the answer goes."""

    json: bool = False
    out: Path | None = None
    what_if: bool = True


def fit_command(
    models: Sequence[str], gpus: Sequence[str], options: FitOptions, log: Path | None, output: FitOutput
) -> None:
    """Compute and show the answer for every model on every GPU."""
    startup = read_log(log) if log is not None else None
    if startup is not None:
        if len(models) * len(gpus) > 1:
            raise KvsimError("log explains one model on one GPU, got several")
        options = settings_in(startup, model_named(models[0]), options)
    devices = [gpu_and_cost(gpu, None)[0] for gpu in gpus]
    fits = [fitted(model_named(model), gpu, options) for model in models for gpu in devices]
    terms = None
    if startup is not None:
        terms = (startup, explain(startup, fits[0]))
        fits = [as_logged(startup, fits[0])]
    alone = fits[0] if len(fits) == 1 else None
    others = what_ifs(alone) if alone is not None and output.what_if else []
    if output.json:
        told = [fit.as_json() for fit in fits]
        if alone is not None:
            told[0]["what_if"] = [
                {"name": each.name, "error": each.error} | ({} if each.fit is None else _numbers(each.fit))
                for each in others
            ]
            if terms is not None:
                told[0]["log"] = [vars(term) for term in terms[1]]
        print(json.dumps(told[0] if alone is not None else told, indent=2))
    else:
        Console(highlight=False).print(fit_report(fits, others, terms))
    if output.out is not None:
        from kvsim.reports.figures.memory_split import draw_memory
        from kvsim.reports.rundir.writing import print_figures

        if not fits[0].lines:
            raise KvsimError("out must be left out with kv_memory: a given cache has no other parts to draw")
        print_figures(output.out, partial(draw_memory, fits), output)


def _numbers(fit: Fit) -> dict[str, object]:
    capacity = fit.capacity
    return {
        "num_blocks": capacity.num_blocks,
        "kv_tokens": capacity.kv_tokens,
        "max_concurrency": capacity.max_concurrency,
        "kv_memory_bytes": fit.kv_memory_bytes,
        "refused": capacity.refusal,
    }
