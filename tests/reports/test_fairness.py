"""What reports say about fairness: the figure, and which requests were passed over."""

import json
from pathlib import Path

from kvsim import cli
from kvsim.reports.html.report import _described
from kvsim.reports.lives.event_log import read_events
from kvsim.reports.rundir.run import read_runs

MIX = ("--clients-mix", "A:0.8,B:0.2", "--request-rate", "14", "--max-num-seqs", "16", "--num-prompts", "120")


def run(out, *flags):
    assert cli.main(["run", *flags, "--out", str(out), "--no-plots", "--quiet"]) == 0
    return out


def told(directory, request, capsys):
    capsys.readouterr()
    assert cli.main(["explain", str(directory), str(request), "--json"]) == 0
    return json.loads(capsys.readouterr().out).get("passed_over", "")


def test_who_is_passed_over_is_told_how_often_and_why(tmp_path, capsys):
    """Under vtc for A, which asks much, but never for first arrivals; under fcfs for none."""
    fair = run(tmp_path / "vtc", "--policy", "vtc", *MIX)
    lines = [told(fair, request, capsys) for request in (0, 20, 60, 80)]
    assert not lines[0]
    assert any(
        line.startswith("passed over ") and line.endswith(", as client B was behind") for line in lines
    )
    assert not told(run(tmp_path / "fcfs", *MIX), 60, capsys)


def test_those_that_pass_by_length_are_counted(tmp_path, capsys):
    """Simultaneous, one seat: 0 has the longest answer of three and goes last."""
    trace = tmp_path / "three.jsonl"
    rows = [{"arrival_s": 0, "prompt_tokens": 5, "output_tokens": size} for size in (30, 9, 4)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ("--trace", str(trace), "--policy", "sjf", "--max-num-seqs", "1")
    found = run(tmp_path / "sjf", *flags)
    assert [told(found, row, capsys) for row in range(3)] == [
        "passed over 2 times, as their answers are shorter",
        "passed over 1 time, as their answers are shorter",
        "",
    ]


def test_the_figure_is_drawn_of_one_run_and_of_several(tmp_path):
    runs = [str(run(tmp_path / policy, "--policy", policy, *MIX)) for policy in ("fcfs", "vtc")]
    for chosen in (runs[:1], runs):
        assert cli.main(["plot", *chosen, "--figure", "fairness", "--out", str(tmp_path / "p")]) == 0
        assert Path(tmp_path / "p" / "fairness.png").stat().st_size > 9000


def test_without_clients_there_is_nothing_to_draw(tmp_path, capsys):
    plain = run(tmp_path / "plain", "--num-prompts", "5")
    assert cli.main(["plot", str(plain), "--figure", "fairness"]) == 2
    assert "figure fairness needs requests with clients" in capsys.readouterr().err


def test_the_page_has_the_sentences_of_explain(tmp_path, capsys):
    """In its table of requests; test_report_browser.py looks at what is shown."""
    fair = run(tmp_path / "vtc", "--policy", "vtc", "--record-map", *MIX)
    (found,) = read_runs(fair)
    about, _, packs = _described(found, found, read_events(found.path), mapped=False)
    places = packs["requests"].columns["passed"].tolist()
    assert 10 < sum(map(bool, places)) < 120
    for request in range(0, 120, 7):
        assert about["passed"][places[request]] == told(fair, request, capsys)
