"""Runs on this machine, on Dask and on Ray: the same table to the byte, also when a worker is killed."""

import os
import signal
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from support.tasks import Crashes, always_dies, dies_on, dies_once, double, refuses

import kvsim
from kvsim.commands import sweep as sweeping
from kvsim.reports import backends
from kvsim.reports.backends import MOST_LOSSES, results
from kvsim.reports.processes import unordered
from kvsim.reports.sweeps.journal import Journal
from kvsim.reports.sweeps.table import write_table
from kvsim.sim.errors import KvsimError
from kvsim.sim.options.sweeps import Where

pytestmark = pytest.mark.slow

ROOT = Path(kvsim.__file__).resolve().parents[1]
GIVEN = {"request_rate": "1:6:1", "allocator": ["paged", "contiguous"], "num_prompts": 300, "seeds": 2}
RUNS = 24


def given(function, many, jobs=2):
    """The results, in the order of their numbers."""
    with results(function, [(number,) for number in range(many)], jobs) as found:
        return [value for _, value in sorted(found)]


def test_results_come_with_their_numbers():
    assert given(double, 20) == [2 * number for number in range(20)]
    assert given(double, 0) == []
    assert given(double, 3, jobs=1) == [0, 2, 4]


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_a_lost_worker_had_is_handed_out_again(tmp_path, jobs):
    assert given(partial(dies_once, tmp_path / "died"), 12, jobs) == [2 * number for number in range(12)]
    assert (tmp_path / "died").exists()


CHOSEN = (1, 4)
DOUBLED = [2 * number for number in range(10)]
WITH_LOST = [f"exit code {n}" if n == 4 else "SIGSEGV" if n in CHOSEN else 2 * n for n in range(10)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_call_that_ends_its_process_has_its_reason_and_the_others_go_on(jobs):
    arguments = [(number,) for number in range(10)]
    with results(partial(dies_on, CHOSEN), arguments, jobs, lost=str) as found:
        assert [value for _, value in sorted(found)] == WITH_LOST
    with pytest.raises(KvsimError, match=r"ended by SIGSEGV, also when it ran alone"):
        given(partial(dies_on, (3,)), 4)


def test_a_lost_worker_is_an_error_where_nobody_says_what_else_it_gives():
    with (
        pytest.raises(KvsimError, match="SIGKILL, maybe for want of memory"),
        unordered(always_dies, [(1,), (2,)], 2) as found,
    ):
        list(found)


def test_machines_that_are_lost_again_and_again_are_an_error(monkeypatch):
    tries = []

    @contextmanager
    def no_machine(function, jobs, address):
        def once(todo, apart, alone):
            tries.append(apart)
            raise ConnectionError("gone")
            yield

        yield once

    monkeypatch.setitem(backends._CLUSTERS, "dask", no_machine)
    with (
        pytest.raises(KvsimError, match=r"lost its workers 3 times .*gone\); 4 runs are left to do"),
        results(double, [(number,) for number in range(4)], 2, "dask") as found,
    ):
        list(found)
    assert tries == [False, True, True] and len(tries) == MOST_LOSSES


def test_what_a_function_raises_is_raised():
    with pytest.raises(KvsimError, match="not"):
        given(refuses, 4)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"backend": "slurm"}, "backend must be one of local, ray, dask"),
        ({"address": "h:1"}, "address must be left out"),
    ],
)
def test_a_wrong_backend_is_told(options, complaint):
    with pytest.raises(KvsimError, match=complaint), results(double, [(1,)], 2, **options):
        pass


# -- clusters -----------------------------------------------------------------------------------


def swept(directory, where, killed=lambda: None):
    """The bytes of a sweep's tables; `killed` is called when a few runs are done."""
    directory.mkdir()
    planned, journal = sweeping.planned(GIVEN), Journal(directory / "runs.jsonl")
    called = []

    def heard(left):
        if left <= RUNS - 4 and not called:
            called.append(killed())

    sweeping.carry_out(planned, journal, where, heard)
    assert len(journal.done) == RUNS and called
    for name in ("table.parquet", "table.csv"):
        write_table(planned.rows(journal), directory / name)
    return [(directory / name).read_bytes() for name in ("table.parquet", "table.csv")]


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    return swept(tmp_path_factory.mktemp("local") / "out", Where(jobs=1))


def crashed(where, **kept):
    """A sweep with a run that exits its process."""
    return kvsim.sweep(allocator=["paged", Crashes, "contiguous"], num_prompts=20, **vars(where), **kept)


def test_a_run_that_ends_its_process_is_a_row_and_is_tried_again_by_the_next_command(tmp_path):
    table = crashed(Where(jobs=2), out=tmp_path)
    assert list(table.status) == ["finished", "failed", "finished"]
    assert table.reason[1] == "its process was ended by SIGSEGV, also when it ran alone"
    assert len(Journal(tmp_path / "runs.jsonl").done) == 2
    pd.testing.assert_frame_equal(crashed(Where(jobs=1), out=tmp_path), table)


@pytest.fixture
def importable(monkeypatch):
    """Lets processes started by others find kvsim, and the calls."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))


def test_two_processes_give_the_same_table(local, tmp_path):
    assert swept(tmp_path / "out", Where(jobs=2)) == local


def test_dask_gives_the_same_table_also_when_a_worker_is_killed(local, tmp_path, importable):
    distributed = pytest.importorskip("distributed")
    pytest.importorskip("joblib")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]
        assert len(set(pids)) == 2
        where = Where(backend="dask", address=cluster.scheduler_address)
        assert swept(tmp_path / "out", where, lambda: os.kill(pids[0], signal.SIGKILL)) == local
        assert not Path(f"/proc/{pids[0]}/exe").exists()


def test_ray_on_two_nodes_gives_the_same_table_also_when_one_is_killed(local, tmp_path, importable):
    ray = pytest.importorskip("ray")
    pytest.importorskip("joblib")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        second = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        where = Where(backend="ray", address=cluster.address)

        def killed():
            assert ray.cluster_resources()["CPU"] == 2
            cluster.remove_node(second, allow_graceful=False)

        assert swept(tmp_path / "out", where, killed) == local
    finally:
        ray.shutdown()
        cluster.shutdown()
        time.sleep(0.1)


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_a_call_that_ends_its_process_has_its_reason_on_a_cluster_too(backend, importable):
    pytest.importorskip({"dask": "distributed"}.get(backend, backend))
    arguments = [(number,) for number in range(10)]
    with results(partial(dies_on, CHOSEN), arguments, 2, backend, lost=str) as found:
        assert [value for _, value in sorted(found)] == WITH_LOST
