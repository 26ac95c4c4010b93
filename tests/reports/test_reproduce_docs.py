"""docs/reproduce.md and the run that it shows: its numbers, its verdicts, and whether they still hold."""

import json
from pathlib import Path

import pytest

from kvsim import cli, workloads
from kvsim.reports import palette
from kvsim.reports.papers import checks
from kvsim.reports.papers.cells import Bench
from kvsim.reports.papers.declared import read_paper
from kvsim.reports.papers.report import claims
from kvsim.reports.papers.running import Findings
from kvsim.reports.papers.series import Found, all_series, find

pytestmark = pytest.mark.slow

DOCS = Path(cli.__file__).resolve().parent / "docs"
README = (DOCS.parent / "README.md").read_text(encoding="utf-8")
PAGE = (DOCS / "reproduce.md").read_text(encoding="utf-8")
SHIPPED = json.loads((DOCS / "reproduce" / "results.json").read_text(encoding="utf-8"))
FIGURES = {figure["figure"]: figure for figure in SHIPPED["figures"]}
PAPER = read_paper("pagedattention")
ORCAS = ("Orca (Max)", "Orca (Pow2)", "Orca (Oracle)")


def judged(number):
    """What the checks say about the shipped numbers."""
    found, figure = {}, FIGURES[number]
    values = {name: value for value, name in PAPER.figures[number].settings.get("names", {}).items()}
    for row in figure["rows"]:
        series = found.setdefault((number, row["panel"], row["system"], ""), Found())
        series.values[row["value"]] = row["simulated"]
    for other in figure["open_choices"]:
        series = found.setdefault((number, other["panel"], other["system"], other["choice"]), Found())
        series.values[values.get(other["value"], other["value"])] = other["other"]
    return checks.judged(PAPER, PAPER.figures[number], Findings(found, 0, 0.0, 0.0, 0.0))


def row(number, panel, system, value=None):
    """One row of the shipped results."""
    return next(
        row
        for row in FIGURES[number]["rows"]
        if (row["panel"], row["system"]) == (panel, system) and row["value"] == (value or row["value"])
    )


def line(start):
    """The row of the table of verdicts with this beginning."""
    (found,) = (line for line in PAGE.splitlines() if line.startswith(f"| {start},"))
    return found


def told(rows):
    """`published - simulated` of some rows, as the page shows it."""
    return " - ".join(
        ", ".join(palette.figures(row[which]) for row in rows) for which in ("published", "simulated")
    )


def ratios(number, panels, of="vLLM", over="Orca (Oracle)"):
    """The same for the ratios between two systems."""
    pairs = [(row(number, panel, of, "rate"), row(number, panel, over, "rate")) for panel in panels]
    return " - ".join(
        ", ".join(f"{one[which] / other[which]:.2f}" for one, other in pairs)
        for which in ("published", "simulated")
    )


def test_the_shipped_run_is_a_whole_one_of_all_figures():
    assert SHIPPED["quick"] is False
    assert list(FIGURES) == list(PAPER.figures)


@pytest.mark.parametrize("number", FIGURES)
def test_the_shipped_numbers_have_the_shipped_verdicts(number):
    again, shipped = judged(number), FIGURES[number]
    assert again.verdict == shipped["verdict"]
    assert again.as_json()["checks"] == shipped["checks"]
    assert again.as_json()["rows"] == shipped["rows"]


@pytest.mark.parametrize("number", FIGURES)
def test_the_page_says_the_verdict(number):
    word = line(number).split("|")[3]
    assert ("misses" in word) == (FIGURES[number]["verdict"] == checks.MISSES)


def test_the_readme_says_how_many_agree():
    agreeing = sum(figure["verdict"] == checks.AGREES for figure in FIGURES.values())
    assert (agreeing, len(FIGURES)) == (7, 10)
    assert "reproduces ten of its figures; seven agree" in README


def test_the_table_of_verdicts_has_the_numbers_of_the_run():
    tokens = [row("2", "ShareGPT", system, "token") for system in (*ORCAS, "vLLM")]
    published, simulated = told(tokens).split(" - ")
    assert f"{published} % - {simulated} %" in line("2")
    passed = FIGURES["12"]["checks"][1]["detail"]
    assert passed.startswith("23 of 24") and "23 of 24" in line("12")
    for panel in ("ShareGPT", "Alpaca"):
        assert told([row("13", panel, system) for system in ORCAS]) in line("13")
        assert told([row("13", panel, "vLLM")]) in line("13")
    for kind in ("parallel", "beam"):
        assert ratios("14", [f"{kind} {width}" for width in (2, 4, 6)]) in line("14")
    saved = told([row("15", f"Alpaca, parallel {n}", "vLLM") for n in (2, 4, 6)]).split(" - ")
    assert " % - ".join(saved) in line("15")
    shots = ("1-shot, 80 tokens", "5-shot, 341 tokens")
    assert ratios("16", shots, of="vLLM, prefix kept") in line("16")
    assert ratios("17", ["chat"]) in line("17")
    for check in FIGURES["18b"]["checks"][:2]:
        assert check["detail"].startswith("best at 16,") and "best at 16 " in line("18b")
    apart = FIGURES["19b"]["checks"][0]["detail"].removeprefix("at most ").split(".")[0]
    assert f"{apart} % apart" in line("19b")


def test_the_rates_of_figure_12_are_those_of_the_run():
    for panel in PAPER.figures["12"].panels:
        (cells,) = (line for line in PAGE.splitlines() if line.startswith(f"| {panel} |"))
        for system, cell in zip(("FasterTransformer", *ORCAS, "vLLM"), cells.split("|")[2:], strict=False):
            one = row("12", panel, system, "rate")
            assert cell.strip().replace("*", "") == told([one])
            assert ("**" in cell) == (one["verdict"] == checks.MISSES)


def test_the_ratios_of_the_text_are_those_of_the_run():
    again = claims(PAPER, [judged(number) for number in FIGURES])
    assert again == SHIPPED["claims"]
    table = PAGE.split("## What the text claims")[1].split("##")[0]
    for claim in SHIPPED["claims"]:
        for pair in claim["ratios"].values():
            for low, high in pair.values():
                assert f"{low:.2f}" in table and f"{high:.2f}" in table


def test_other_numbers_of_the_page():
    def other(number, panel, system, choice):
        return palette.figures(
            next(
                each["other"]
                for each in FIGURES[number]["open_choices"]
                if (each["panel"], each["system"], each["choice"]) == (panel, system, choice)
            )
        )

    figure = palette.figures
    straight = row("12", "OPT-13B, ShareGPT", "Orca (Max)", "drawn")
    vllm = row("12", "OPT-66B, Alpaca", "vLLM", "rate")
    context = other("12", "OPT-13B, Alpaca", "vLLM", "slope is attention")
    apart = other("12", "OPT-66B, Alpaca", "vLLM", "prompts apart")
    for text in (
        f"cross at {figure(straight['simulated'])}",
        f"serve {apart} requests/s on OPT-66B and Alpaca instead of {figure(vllm['simulated'])}",
        f"{context} requests/s instead of 28.1",
    ):
        assert text in " ".join(PAGE.split())


@pytest.mark.parametrize("number", ["2", "19a"])
def test_the_shipped_numbers_are_those_of_this_simulator(number):
    for series in all_series(PAPER, PAPER.figures[number], quick=False):
        if not series.choice:
            found = find(series, Bench(workloads.build, None)).values
            for shipped in FIGURES[number]["rows"]:
                if (shipped["panel"], shipped["system"]) == (series.panel, series.system):
                    assert found[shipped["value"]] == pytest.approx(shipped["simulated"], rel=1e-9)


def test_pictures_are_there_and_small():
    for number in FIGURES:
        picture = DOCS / "images" / "reproduce" / f"figure{number}.png"
        assert f"(images/reproduce/{picture.name})" in PAGE
        assert picture.stat().st_size < 200_000
