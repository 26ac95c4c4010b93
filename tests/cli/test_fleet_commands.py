"""A fleet from outside: its map, the life of a request, its timeline and its dashboard."""

import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib.image import imread as read_png
from support.report_page import opened

import kvsim
from kvsim import cli
from kvsim.reports.figures.arena import memory_map
from kvsim.reports.figures.choices import Choices
from kvsim.reports.figures.style import style_named
from kvsim.reports.figures.systems import systems
from kvsim.reports.html.arena import read_arena
from kvsim.reports.html.report import report
from kvsim.reports.labels import told_apart
from kvsim.reports.rundir.run import read_runs
from kvsim.sim.workload import PS_PER_S

pytestmark = pytest.mark.slow

REPLICAS = 3
FLEET = (
    "run",
    "--num-prompts",
    "60",
    "--request-rate",
    "40",
    "--replicas",
    str(REPLICAS),
    "--no-plots",
    "--quiet",
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A fleet with its map."""
    directory = tmp_path_factory.mktemp("fleet") / "recorded"
    assert (
        cli.main([*FLEET, "--router", "least-requests", "--record-map", "12", "--out", str(directory)]) == 0
    )
    return directory


def told(directory, request, capsys):
    assert cli.main(["explain", str(directory), str(request), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_life_of_a_request_is_told_by_the_replica_that_served_it(recorded, tmp_path, capsys):
    requests = pq.read_table(recorded / "requests.parquet")
    homes = requests["replica"].to_pylist()
    assert set(homes) == set(range(REPLICAS))
    again = tmp_path / "unrecorded"
    assert cli.main([*FLEET, "--router", "least-requests", "--out", str(again)]) == 0
    capsys.readouterr()
    for request in (0, 17, 59):
        story = told(recorded, request, capsys)
        assert (story["request"], story["run"]) == (request, f"paged, replica {homes[request]}")
        assert story["replica"] == homes[request]
        assert story["lines"][0]["event"] == "arrive"
        assert story["lines"][-1]["event"] == "finish"
        e2e_ps = sum(part["picoseconds"] for part in story["division"])
        assert e2e_ps == round(requests["e2e_s"][request].as_py() * PS_PER_S)
        assert told(again, request, capsys) == story  # the run is repeated
    slowest = told(recorded, "slowest", capsys)
    assert slowest["e2e_s"] == max(requests["e2e_s"].to_pylist())
    assert slowest["chosen"] == "the slowest of the 60 that finished in paged"


def test_in_python_a_fleet_and_its_replicas_tell_the_same(recorded):
    run = kvsim.simulate(num_prompts=60, request_rate=40, replicas=REPLICAS, router="least-requests")
    story = run.explain(17)
    assert story.request == 17
    (home,) = [one for one in kvsim.load(recorded).replicas if 17 in one.columns.requests["request"]]
    assert home.explain(17).lines == story.lines
    assert {line.request for line in (home.explain("slowest"), home.explain("median"))} <= set(
        home.columns.requests["request"].tolist()
    )
    with pytest.raises(kvsim.KvsimError, match="request must be a number from"):
        home.explain(next(i for i in range(60) if i not in home.columns.requests["request"]))


def test_each_replica_has_its_own_map(recorded, capsys):
    (fleet,) = told_apart(read_runs(recorded))
    runs = fleet.replicas
    assert [run.label for run in runs] == [f"replica {place}" for place in range(REPLICAS)]
    figure = memory_map(systems([fleet]), Choices(style_named("screen"), None, None))
    assert sum(axes.get_visible() for axes in figure.axes) == REPLICAS
    for place, run in enumerate(runs):
        arena = read_arena(recorded / "map.parquet", place)
        assert arena.map.slots == 15_744
        named = {int(name.partition(".")[0]) for names in arena.map.rows.owners for name in names.split()}
        assert named <= set(run.columns.requests["request"].tolist())


def test_a_timeline_has_a_process_for_each_replica(recorded, tmp_path, capsys):
    out = tmp_path / "timeline.json"
    assert cli.main(["trace-events", str(recorded), "--out", str(out), "--requests", "all", "--steps"]) == 0
    events = json.loads(out.read_text())["traceEvents"]
    homes = pq.read_table(recorded / "requests.parquet")["replica"].to_pylist()
    processes = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    assert processes == {f"replica {place}": place + 1 for place in range(REPLICAS)}
    threads = [e for e in events if e["name"] == "thread_name" and e["args"]["name"].startswith("request ")]
    assert {(int(e["args"]["name"].split()[1]), e["pid"] - 1) for e in threads} == set(enumerate(homes))
    steps = {pid: 0 for pid in processes.values()}
    for event in events:
        if event.get("cat") == "engine":
            steps[event["pid"]] += 1
    summary = json.loads((recorded / "summary.json").read_text())
    assert list(steps.values()) == [each["engine"]["steps"] for each in summary["replicas"]]


def test_the_dashboard_is_for_fleets_too(capsys):
    assert cli.main([*FLEET[:-1], "--live", "--no-out"]) == 0
    assert "--live needs a terminal that can be drawn on: running without it" in capsys.readouterr().err


def test_a_fleet_as_one_system_is_the_sum_of_its_replicas_at_every_instant(recorded):
    (fleet,) = read_runs(recorded)
    whole, parts = fleet.as_one.columns.timeline, fleet.replicas
    assert np.all(np.diff(whole["time_s"]) > 0)
    for row in range(0, len(whole["time_s"]), 17):
        for name in ("token", "free", "running", "waiting"):
            then = 0
            for part in parts:
                columns = part.columns.timeline
                last = np.searchsorted(columns["time_s"], whole["time_s"][row], side="right") - 1
                then += columns[name][last]
            assert whole[name][row] == then
    assert fleet.as_one.as_one is not None and len(fleet.as_one.replicas) == REPLICAS


def test_the_page_of_a_fleet_has_all_its_requests_and_its_numbers_in_one_column(recorded):
    data, columns = opened(report(read_runs(recorded)))
    assert data["numbers"]["columns"] == ["paged"]
    assert data["numbers"]["rows"][0]["texts"] == ["60"]
    assert dict(data["facts"])["Replicas"] == f"{REPLICAS}, router least-requests"
    assert sum(len(columns[f"requests-{place}"]["request"]) for place in range(REPLICAS)) == 60
    (fleet,) = data["fleets"]
    assert {len(shown["rows"]) for shown in fleet["maps"].values()} == {REPLICAS}
    busy = [np.mean(row) for row in fleet["maps"]["requests at once"]["rows"]]
    assert busy.index(max(busy)) == int(re.search(r"the busiest, replica (\d+)", fleet["words"])[1])


@pytest.mark.parametrize("many", [2, 64])
def test_the_figures_of_a_fleet_are_no_taller_with_64_replicas(tmp_path, many):
    command = ["run", "--num-prompts", "90", "--request-rate", "inf", "--replicas", str(many)]
    assert cli.main([*command, "--quiet", "--out", str(tmp_path / "fleet")]) == 0
    drawn = {path.stem: read_png(path).shape for path in (tmp_path / "fleet").glob("*.png")}
    assert set(drawn) == {"memory", "waste", "requests", "latency", "replicas"}
    assert max(height for height, _, _ in drawn.values()) < 1600
