"""Figures of fleets with separate prefill servers, and of those that grow and shrink."""

import numpy as np
import pytest

import kvsim
from kvsim import cli
from kvsim.reports.balance import Fleet, imbalance
from kvsim.reports.figures.hand_over import _mean_sum
from kvsim.sim.errors import KvsimError

SMALL = {"model": "llama-3.1-8b", "gpu": "h100", "num_prompts": 60, "request_rate": 20.0}


@pytest.fixture(scope="module")
def apart():
    return kvsim.simulate(pool="prefill:1 decode:2:kv_tokens=3000", **SMALL)


@pytest.fixture(scope="module")
def scaled():
    return kvsim.simulate(
        replicas=3, scale="schedule:0=1,1=3", startup_time=0.1, slo="ttft=0.5s", load_bandwidth=100.0, **SMALL
    )


def texts(figure):
    return [each.get_text() for each in figure.findobj(lambda each: hasattr(each, "get_text"))]


def test_what_is_held_at_once_is_the_sum_of_those_that_are_held():
    edges = np.array([0.0, 1, 2, 3])
    found = _mean_sum(edges, np.array([0.5, 0.0]), np.array([2.0, 1.0]), np.array([10.0, 4.0]))
    assert found.tolist() == [9, 10, 0]
    assert _mean_sum(edges, np.array([]), np.array([]), np.array([])).tolist() == [0, 0, 0]


def test_the_figure_of_hand_overs_tells_stages_and_transfer_times(apart):
    said = texts(apart.plot("hand-over"))
    assert {"prefill", "wait to be read", "link", "first decode step", "read, not free yet"} <= set(said)
    assert any("reads take" in each and "at p99" in each for each in said)


def test_what_the_figure_of_hand_overs_holds_is_what_the_ledger_holds(apart):
    """Over the whole run, of all replicas: the timeline's rows of each have a minimum spacing."""
    axes = apart.plot("hand-over").axes[0]
    tops = [path.vertices for layer in axes.collections for path in layer.get_paths()]
    drawn = max(float(np.trapezoid(*_upper(each).T[::-1])) for each in tops) / apart.summary.duration_s
    pools = [pool["replicas"] * pool["kv_capacity"]["tokens"] for pool in apart.config["pools"]]
    held = apart.summary.memory.average["held"] * sum(pools) / pools[0]
    assert drawn == pytest.approx(held, rel=0.05)


def _upper(outline):
    """The upper edge of an area: the largest y at each x."""
    xs = np.unique(outline[:, 0])
    return np.array([(x, outline[outline[:, 0] == x, 1].max()) for x in xs])


def test_the_figure_of_scaling_has_hours_and_attainment(scaled):
    said = texts(scaled.plot("scaling"))
    assert any("GPU-hours" in each and "less than all replicas" in each for each in said)
    assert "within the\nlimits" in said


def test_replicas_of_each_pool_lie_on_top_of_each_other():
    run = kvsim.simulate(
        pool="prefill:1 decode:3",
        scale="decode=schedule:0=1,1=3",
        startup_time=0.1,
        load_bandwidth=100.0,
        **SMALL,
    )
    figure = run.plot("scaling")
    assert {"h100 prefill", "h100 decode"} <= set(texts(figure))
    drawn = next(axes for axes in figure.axes if "replicas" in axes.get_ylabel())
    tops = [patch.get_data() for patch in drawn.patches if patch.get_fill()]
    assert (tops[0].baseline == 0).all()
    assert (tops[1].baseline == tops[0].values).all()
    over = run.summary["scaling"]["over_time"]
    assert list(tops[1].values) == pytest.approx([row["replicas"] for row in over])


def test_other_runs_lack_what_they_show(apart, scaled):
    with pytest.raises(KvsimError, match="figure hand-over needs prefill and decode pools"):
        scaled.plot("hand-over")
    with pytest.raises(KvsimError, match="figure scaling needs a fleet whose replicas come and go"):
        apart.plot("scaling")


BY_HAND = {
    "model": "llama-3.1-8b",
    "gpu": "l40s",
    "cost": "constant:1",
    "async_scheduling": False,
    "kv_tokens": 1024,
    "replicas": 2,
    "trace": "synthetic",
    "input_len": "100",
    "output_len": "5",
    "request_rate": float("inf"),
}


@pytest.mark.parametrize("absent", [{"fail": "replica=1:at=0"}, {"scale": "schedule:0=1"}])
def test_a_replica_that_is_not_there_is_compared_with_nobody(absent):
    """All run on replica 0: it is its own mean, not twice the mean of itself and one that is off."""
    run = kvsim.simulate(**BY_HAND, num_prompts=2, **absent)
    words = imbalance(Fleet.of(run))
    assert "requests at once on average while it is there, 1.00 times the mean" in words
    figure = run.plot("replicas")
    assert any(each.endswith("of 2 replicas; blank: dead or off") for each in texts(figure))
    drawn = [np.ma.filled(axes.images[0].get_array(), np.nan) for axes in figure.axes if axes.images]
    assert all(not np.isnan(values[0]).any() and np.isnan(values[1]).all() for values in drawn)


def test_a_replica_that_dies_is_compared_while_it_is_there():
    """Replica 0 runs 1 for 3 s, 2 for 2 s, 1 for 3 s; replica 1 runs 1 until it dies at 2.5 s."""
    run = kvsim.simulate(**BY_HAND, num_prompts=2, fail="replica=1:at=2.5:for=9")
    fleet = Fleet.of(run)
    assert fleet.column("running", 1)[:, 0] == pytest.approx([10 / 8, 1])
    mean = (10 + 2.5) / (8 + 2.5)
    assert f"{10 / 8 / mean:.2f} times the mean" in imbalance(fleet)
    slices = fleet.column("running", 16)
    assert slices[1, :5] == pytest.approx([1] * 5)
    assert np.isnan(slices[1, 5:]).all()


@pytest.mark.parametrize(
    "absent",
    [
        {"fail": "replica=1:at=2.5:for=4"},
        {"fail": "replica=1:at=0"},
        {"fail": "replica=1:at=0:for=3"},
        {"scale": "schedule:0=1,2=2,6=1", "startup_time": 0.5, "load_bandwidth": 100.0},
    ],
)
def test_the_memory_of_an_absent_replica_is_not_drawn_as_free(absent):
    """Over time, what is drawn has the shares of the summary: those of replicas while they are there."""
    run = kvsim.simulate(**{**BY_HAND, "request_rate": 1.0}, num_prompts=8, **absent)
    timeline, average = run.as_one.columns.timeline, run.summary.memory.average
    kinds = [kind for kind in average if kind in timeline]
    length_s = np.diff(timeline["time_s"], append=run.summary.duration_s)
    held = {kind: (timeline[kind] * length_s).sum() for kind in kinds}
    for kind in kinds:
        assert 100 * held[kind] / sum(held.values()) == pytest.approx(average[kind], abs=1e-3)
    assert sum(held.values()) < 0.95 * 2 * 1024 * run.summary.duration_s


def test_each_fleet_gets_its_own_figures(apart, scaled, tmp_path):
    for run, name in ((apart, "hand-over"), (scaled, "scaling")):
        run.save(tmp_path / name, plots=True)
        drawn = {path.stem for path in (tmp_path / name).glob("*.png")}
        assert drawn == {"memory", "waste", "requests", "latency", "replicas", name}


def test_the_terminal_has_a_line_of_what_was_handed_over(capsys):
    flags = ["--model", "llama-3.1-8b", "--gpu", "h100", "--num-prompts", "20", "--request-rate", "20"]
    assert cli.main(["run", *flags, "--pool", "prefill:1", "--pool", "decode:1", "--no-out"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "handed over 20 prompts, " in said
    assert "of a prefill replica" in said
