"""What each kind of layer holds, in the terminal, on the page and in the figure of waste."""

from copy import deepcopy
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from rich.console import Console
from support.fake_run import fake_run

from kvsim.reports.by_layers import by_layers, layers_table, quantities
from kvsim.reports.figures.choices import Choices
from kvsim.reports.figures.ledger import waste
from kvsim.reports.figures.style import style_named
from kvsim.reports.figures.systems import systems
from kvsim.reports.palette import KINDS, meaning
from kvsim.reports.rundir.run import Run, Tables
from kvsim.sim.deployment.deployment import Deployment
from kvsim.sim.deployment.engine import EngineConfig
from kvsim.sim.models.catalog import gpu_named, model_named
from kvsim.sim.record.summary import Summary
from kvsim.sim.run import prepare
from kvsim.sim.workload import Workload


def summary_of(model="gemma-3-27b", **engine):
    server = Deployment(
        model=model_named(model), gpu=gpu_named("h100"), engine=EngineConfig(**engine), cost="constant:1"
    )
    work = Workload("test", *(np.array(column, np.int64) for column in ([0, 0], [3_000, 200], [20, 400])))
    return prepare(server, work, {}).outcome().summary


@pytest.fixture(scope="module")
def summaries():
    return {name: summary_of(allocator=name) for name in ("hybrid", "jenga", "split")}


def test_shares_are_means_over_seeds_and_kinds_of_the_ledger(summaries):
    seeds = [summaries["hybrid"], summaries["hybrid"]]
    found = by_layers(seeds, saturated=False)
    assert list(found) == [
        "1 group of 10 full-attention layers",
        "4 groups of 9 and 2 of 8 sliding-window layers (1,024 tokens), padded to 10",
    ]
    whole = seeds[0]["memory"]["average"]
    assert sum(shares["token"] for shares in found.values()) == pytest.approx(whole["token"])
    assert by_layers([summary_of("llama-3.1-8b")], saturated=False) == {}


def test_the_pools_of_split_are_all_of_the_memory(summaries):
    found = by_layers([summaries["split"]], saturated=False)
    assert sum(sum(shares.values()) for shares in found.values()) == pytest.approx(100)


@pytest.mark.parametrize("width", [40, 80])
def test_the_table_keeps_its_numbers_in_a_narrow_terminal(summaries, width):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(layers_table([summaries["jenga"]], saturated=False))
    said = console.export_text()
    token = summaries["jenga"]["memory"]["groups"]["full"]["average"]["token"]
    assert f"{token:.1f} %" in said and "idle" in said
    assert max(map(len, said.splitlines())) <= width


def test_a_page_names_layers_as_all_systems_have_them(summaries):
    alone = [each.name for each in quantities([[summaries["hybrid"]]])]
    assert alone[0] == "tokens in 1 group of 10 full-attention layers"
    both = [each.name for each in quantities([[each] for each in summaries.values()])]
    assert both[2] == "tokens in sliding-window layers (1,024 tokens)"
    empty = quantities([[summaries["hybrid"]]])[3]
    held = summaries["hybrid"]["memory"]["groups"]["window 1,024"]["average"]
    assert empty.read(summaries["hybrid"]) == held["reserved"] + held["internal"]
    assert quantities([[summary_of("llama-3.1-8b")]]) == []


def test_free_memory_of_the_other_pool_is_not_called_a_piece_too_small(summaries):
    split = deepcopy(summaries["split"])
    split["memory"]["average"]["external"] = 1.0
    assert meaning("external", [split]) == meaning("external", [summaries["hybrid"], split])
    assert meaning("external", [split]) == "free, in the pool of other layers"
    paged = summary_of("llama-3.1-8b")
    paged["memory"]["average"]["external"] = 1.0
    assert meaning("external", [paged]) == KINDS["external"].meaning
    assert meaning("external", [split, paged]) == "free, in pieces too small or another pool"
    assert meaning("free", [split]) == KINDS["free"].meaning


@pytest.mark.parametrize("style", ["screen", "paper"])
def test_the_figure_of_waste_draws_them_below_their_system(summaries, style):
    runs = []
    for name, summary in summaries.items():
        made = fake_run()
        numbers = Summary({**made["summary"], "memory": summary["memory"], "label": name})
        columns = Tables(made["requests"], made["timeline"])
        runs.append(Run(Path(name), name, {**made["config"], "label": name}, numbers, columns))
    look = style_named(style)
    with matplotlib.rc_context(look.settings):
        figure = waste(systems(runs), Choices(look))
        figure.draw_without_rendering()
    (axes,) = figure.axes
    said = [text.get_text().replace("\u00a0", " ").replace("\n", " ") for text in axes.texts]
    layers = [words for words in said if " layers" in words]
    assert len(layers) == 6
    assert layers[0].startswith("1 group of 10 full-attention layers: ")
    assert layers[5].startswith("1 group of 52 sliding-window layers (1,024 tokens): ")
    assert "(its pool: " in layers[5]
    named = [text for text in axes.texts if " layers" in text.get_text()]
    boxes = [text.get_window_extent() for text in named]
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)
    bars = [patch.get_window_extent() for patch in axes.patches if patch.get_width() > 0]
    over = [(box, bar) for box in boxes for bar in bars if box.y0 < bar.y1 - 2 and bar.y0 < box.y1 - 2]
    assert not [box for box, bar in over if box.x0 < bar.x1 and bar.x0 < box.x1]
