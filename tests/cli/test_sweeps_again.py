"""`sim plot` and `sim report` read the directories of sweeps and of searches for capacity."""

import json
import re

import pytest

from kvsim import cli
from kvsim.reports.sweeps.place import sweep_directory

pytestmark = pytest.mark.slow

FEW = ["--num-prompts", "40", "--jobs", "1", "--no-plots", "--quiet"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    out = tmp_path_factory.mktemp("swept") / "sweep"
    lists = ["--allocator", "paged,contiguous", "--request-rate", "1,4"]
    assert cli.main(["sweep", *lists, *FEW, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def sought(tmp_path_factory):
    out = tmp_path_factory.mktemp("sought") / "<search>"
    goal = ["--slo", "e2e:p99=40s", "--seeds", "2", "--tolerance", "0.2"]
    assert cli.main(["capacity", "--allocator", "paged,contiguous", *goal, *FEW, "--out", str(out)]) == 0
    return out


def test_a_sweep_is_drawn_again_in_another_style_and_format(swept, tmp_path, capsys):
    assert cli.main(["plot", str(swept), "--style", "dark", "--format", "svg", "--out", str(tmp_path)]) == 0
    drawn = capsys.readouterr().out.split()
    assert {path.rpartition("/")[2] for path in drawn} == {"curves.svg", "heatmap.svg", "pareto.svg"}


def test_so_is_a_search_for_capacity_with_the_answer_that_it_gave(sought, tmp_path):
    assert cli.main(["plot", str(sought), "--format", "svg", "--out", str(tmp_path)]) == 0
    answer = json.loads((sought / "capacity.json").read_text())["answer"]
    assert answer[:30] in (tmp_path / "capacity.svg").read_text()


def test_their_pages_hold_the_answer_the_figures_and_a_row_for_each(swept, sought):
    for directory, figures, rows in ((swept, 3, 4), (sought, 1, 2)):
        assert cli.main(["report", str(directory)]) == 0
        page = (directory / "report.html").read_text()
        assert page.count("<img ") == figures and page.count("<tr>") == rows + 1 == page.count(
            "<tr><th scope="
        )
        assert '<th scope="col" class="whole">GPUs</th>' in page and "<td>1</td>" in page, (
            "headings in words, whole numbers"
        )
        assert not re.search(r"(src|href)=.?https?:", page) and "<search>" not in page
    assert cli.main(["report", str(swept), str(sought)]) == 2


def test_the_page_says_what_all_runs_have_in_common_and_tells_seeds_apart(tmp_path):
    flags = ["--num-prompts", "20", "--seeds", "2", "--max-num-seqs", "4,8", "--out", str(tmp_path / "out")]
    flags += ["--kv-offloading-size", "1GiB"]  # an option of a scheduler
    assert cli.main(["sweep", "--request-rate", "2", *flags, "--no-plots"]) == 0
    assert cli.main(["report", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out/report.html").read_text()
    assert (
        '<p class="lead">All runs: opt-13b, a100-40gb, sharegpt, rate 2, num prompts 20, tier 1GiB.</p>'
        in page
    )
    assert 'class="whole">seats</th><th scope="col" class="whole">seed</th>' in page


@pytest.mark.parametrize("command", ["plot", "report"])
def test_what_holds_no_run_says_what_to_do(command, tmp_path, capsys):
    search = tmp_path / "search"
    with sweep_directory(search):
        pass  # interrupted: the journal is all there is
    assert cli.main([command, str(search)]) == 2
    said = capsys.readouterr().err
    assert "not finished: the same `sim sweep` or `sim capacity` command continues it" in said
    assert cli.main(["fit", "llama-3.1-8b", "--gpu", "h100", "--out", str(tmp_path / "fit")]) == 0
    capsys.readouterr()
    assert cli.main([command, str(tmp_path / "fit")]) == 2
    assert "holds figures only, no run: " in capsys.readouterr().err


def test_a_sweep_that_is_not_done_is_said_to_be_so(tmp_path, capsys):
    (tmp_path / "sweep.json").write_text("{}")
    assert cli.main(["plot", str(tmp_path)]) == 2
    assert "is a sweep that is not done: table.parquet is missing" in capsys.readouterr().err
