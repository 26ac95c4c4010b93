"""Papers without a server: every figure agrees, and misses as soon as its basis changes."""

import pytest
import typer

from kvsim import cli, workloads
from kvsim.reports.papers import checks, declared, running
from kvsim.reports.papers.mechanisms import MEASURES, interleaved, measured, uniform_waste

PAPERS = ("hybrid-waste", "host-memory", "llama-defrag")


def verdicts(name, change=lambda cell: None):
    paper = declared.read_paper(name)
    for model in paper.tables["models"].values():
        change(model["arguments"])
    figures = list(paper.figures.values())
    findings = running.carry_out_all(paper, figures, workloads.build, quick=False, jobs=1, store=None)
    assert findings.runs == 0, "no simulation"
    return [checks.judged(paper, figure, findings).verdict for figure in figures]


@pytest.mark.parametrize("name", PAPERS)
def test_all_figures_agree(name):
    assert set(verdicts(name)) == {checks.AGREES}


def test_every_measure_is_used_by_a_figure():
    used = {
        figure.settings["measure"]
        for name in declared.paper_names()
        for figure in declared.read_paper(name).figures.values()
        if figure.reads == "mechanism"
    }
    assert used == set(MEASURES)


def test_the_help_of_the_command_names_every_paper():
    command = typer.main.get_command(cli.app).commands["reproduce"]
    (paper,) = (each for each in command.params if each.name == "paper")
    assert sorted(paper.help.rstrip(".").split(", ")) == declared.paper_names()


def test_another_window_is_another_waste():
    def wider(arguments):
        if "kinds" in arguments:
            arguments["kinds"][1]["tokens"] += 1_000

    assert verdicts("hybrid-waste", wider) == [checks.MISSES, checks.AGREES]


def test_a_larger_chunk_and_one_group_more_are_another_block_and_share():
    def larger(arguments):
        for name in arguments.keys() & {"chunk", "groups"}:
            arguments[name] += 1

    assert verdicts("hybrid-waste", larger) == [checks.AGREES, checks.MISSES]


def test_tensors_of_a_power_of_two_take_what_they_ask_for():
    def whole(arguments):
        if "buffer_bytes" in arguments:
            arguments["buffer_bytes"] = 1 << 31
        else:
            arguments["gb_per_s"] *= 2

    assert verdicts("host-memory", whole) == [checks.MISSES, checks.MISSES]


def test_larger_graphs_move_enough_at_once():
    def larger(arguments):
        if "most" in arguments:
            arguments["most"] = 341
        else:
            arguments["nodes"] = 65_536

    assert verdicts("llama-defrag", larger) == [checks.MISSES, checks.MISSES, checks.AGREES]


def test_the_closed_form_is_the_sum_over_tokens_and_layers():
    kinds = [{"layers": 3, "tokens": 5}, {"layers": 2, "tokens": 8}]
    held = [token < kind["tokens"] for kind in kinds for _ in range(kind["layers"]) for token in range(8)]
    assert uniform_waste(kinds, 8)["waste"] == pytest.approx(100 * held.count(False) / len(held))


def test_lanes_that_decode_side_by_side_leave_holes_as_wide_as_those_gone():
    found = interleaved(cells=4_096, lanes=8, tokens=512, gone=4, prompt=512, most=42)
    assert (found["free"], found["longest"], found["refused"]) == (2_048, 4, 1)
    assert measured("interleaved", {**_nearly_full(), "prompt": 384})["refused"] == 0


def _nearly_full():
    return {"cells": 16_384, "lanes": 4, "tokens": 4_000, "gone": 1, "prompt": 2_048, "most": 341}
