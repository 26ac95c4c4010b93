"""Where many runs are computed: on this machine, on a Ray cluster or on a Dask cluster.

    local    the processes of reports/processes.py
    ray      joblib's backend of Ray (extra `ray`): the cluster at an address, else one on this machine
    dask     joblib's backend of Dask (extra `dask`): the scheduler at an address, else processes of its own

The same function on the same arguments, whatever the place; what comes back has the number of its argument.
A worker that is lost, with its machine or for want of memory, costs time alone: what had not come back is
handed out again, until `MOST_LOSSES` in a row bring nothing.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, TypeVar

from kvsim.sim.errors import KvsimError

T = TypeVar("T")
BACKENDS = ("local", "ray", "dask")
MOST_LOSSES = 3
Results = Iterator[tuple[int, T]]


@contextmanager
def results(
    function: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
    jobs: int,
    backend: str = "local",
    address: str | None = None,
) -> Iterator[Results[T]]:
    """Give the results as they come, each with the number of its arguments.

    Parameters
    ----------
    function : callable
        Importable on every machine, or picklable; raises only for what is worth trying again elsewhere.
    jobs : int
        Processes at most.
    backend : str
        One of BACKENDS.
    address : str, optional
        Of the cluster; None: one on this machine, for this call.

    Raises
    ------
    KvsimError
        An unknown backend, a library that is not there, or workers that are lost again and again.
    """
    if backend not in BACKENDS:
        raise KvsimError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "local" and address is not None:
        raise KvsimError("address must be left out with the backend local")
    with ExitStack() as held:
        if backend == "local":
            once = _local(function, jobs)
        else:
            once = held.enter_context(_CLUSTERS[backend](function, jobs, address))
        with closing(_until_done(once, arguments, backend)) as found:
            yield found


Once = Callable[[Sequence[tuple[int, tuple[Any, ...]]]], Generator[tuple[int, Any], None, None]]
"""Hands out numbered arguments, gives numbered results, and raises when a worker is lost."""


def _until_done(
    once: Once, arguments: Sequence[tuple[Any, ...]], backend: str
) -> Generator[tuple[int, Any], None, None]:
    left = dict(enumerate(arguments))
    losses = 0
    while left:
        try:
            with closing(once(list(left.items()))) as found:
                for number, value in found:
                    del left[number]
                    losses = 0
                    yield number, value
        except KvsimError as error:
            if not _lost(error):
                raise
            losses += 1
            if losses >= MOST_LOSSES:
                raise KvsimError(f"{error}; {len(left):,} runs are left to do") from error
        except Exception as error:
            losses += 1
            if losses >= MOST_LOSSES:
                raise KvsimError(
                    f"backend {backend} lost its workers {losses} times in a row "
                    f"({type(error).__name__}: {error}); {len(left):,} runs are left to do"
                ) from error


def _lost(error: KvsimError) -> bool:
    from kvsim.reports.processes import WorkerLost

    return isinstance(error, WorkerLost)


def _local(function: Callable[..., Any], jobs: int) -> Once:
    from kvsim.reports.processes import unordered

    def once(todo: Sequence[tuple[int, tuple[Any, ...]]]) -> Generator[tuple[int, Any], None, None]:
        with unordered(function, [each for _, each in todo], jobs) as found:
            for place, value in found:
                yield todo[place][0], value

    return once


def _through_joblib(function: Callable[..., Any], cores: Callable[[], int], name: str) -> Once:
    """Hand out through a registered backend of joblib, to as many cores as there are at the time."""
    from joblib import Parallel, delayed, parallel_config

    def once(todo: Sequence[tuple[int, tuple[Any, ...]]]) -> Generator[tuple[int, Any], None, None]:
        with parallel_config(backend=name, n_jobs=max(cores(), 1)):
            hand_out = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="all")
            yield from hand_out(delayed(_numbered)(function, number, each) for number, each in todo)

    return once


def _numbered(function: Callable[..., T], number: int, arguments: tuple[Any, ...]) -> tuple[int, T]:
    return number, function(*arguments)


@contextmanager
def _dask(function: Callable[..., Any], jobs: int, address: str | None) -> Iterator[Once]:
    try:
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise KvsimError("backend dask needs dask: pip install 'kvsim[dask]'") from error
    with ExitStack() as held:
        if address is None:
            address = held.enter_context(
                LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None, silence_logs=50)
            )
        client = held.enter_context(Client(address, set_as_default=True))
        yield _through_joblib(function, lambda: sum(client.ncores().values()), "dask")


@contextmanager
def _ray(function: Callable[..., Any], jobs: int, address: str | None) -> Iterator[Once]:
    try:
        import ray
        from joblib import register_parallel_backend
        from ray.util.joblib.ray_backend import RayBackend
    except ImportError as error:
        raise KvsimError("backend ray needs ray: pip install 'kvsim[ray]'") from error

    class Unordered(RayBackend):
        """Gives results as they come, as its pool can."""

        supports_return_generator = True

    register_parallel_backend("kvsim-ray", Unordered)
    started = not ray.is_initialized()
    if started:
        here = {"num_cpus": jobs, "include_dashboard": False} if address is None else {"address": address}
        ray.init(**here, logging_level="error", log_to_driver=False)
    try:
        yield _through_joblib(function, lambda: int(ray.cluster_resources().get("CPU", 1)), "kvsim-ray")
    finally:
        if started:
            ray.shutdown()


_CLUSTERS = {"ray": _ray, "dask": _dask}
