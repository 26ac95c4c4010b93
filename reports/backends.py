"""Backends that compute many runs: this machine, a Ray cluster or a Dask cluster.

    local    the processes of reports/processes.py
    ray      joblib's backend of Ray (extra `ray`): the cluster at an address, else one on this machine
    dask     joblib's backend of Dask (extra `dask`): the scheduler at an address, else its own processes

The same function runs on the same arguments everywhere; each result carries the index of its argument. A call
whose process dies (a crash, out of memory) is retried once, alone, after the others are done. If that process
dies too, `lost` makes the result. A cluster does not report which call killed a worker, so after losing one,
each worker makes its calls in a separate process. Unfinished work of a lost machine is resubmitted, until
`MOST_LOSSES` losses in a row have brought no result.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from typing import Any, NoReturn, TypeVar

from kvsim.reports.processes import Ended, WorkerLost, carried_out_apart, unordered_apart
from kvsim.sim.errors import KvsimError
from kvsim.sim.plugins import trusting_as_here

T = TypeVar("T")
BACKENDS = ("local", "ray", "dask")
MOST_LOSSES = 3
_DASK_WAITS = {"wait_for_workers_timeout": 60.0}
_OWN_DASK = {
    "distributed.scheduler.allowed-failures": 0,  # lost calls are retried here
    "distributed.deploy.lost-worker-timeout": "10 minutes",  # a busy machine starts one slowly
}
Results = Iterator[tuple[int, T]]


def raised(by: str) -> NoReturn:
    """Raise an error for a call that killed its process."""
    raise WorkerLost(f"its process was ended by {by}, also when it ran alone")


@contextmanager
def results(  # noqa: PLR0917 - the work, and its place
    function: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
    jobs: int,
    backend: str = "local",
    address: str | None = None,
    lost: Callable[[str], T] = raised,
) -> Iterator[Results[T]]:
    """Yield results as they arrive, each with the index of its argument.

    Parameters
    ----------
    function : callable
        Importable on every machine, or picklable; its exceptions are raised here.
    jobs : int
        Maximum number of processes; a cluster uses as many as it has cores.
    backend : str
        One of BACKENDS.
    address : str, optional
        The cluster's address; None: one on this machine, for this call.
    lost : callable
        Makes the result of a call that killed its process twice, from the cause of death.

    Raises
    ------
    KvsimError
        An unknown backend, a missing library, or repeatedly lost machines.
    """
    if backend not in BACKENDS:
        raise KvsimError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "local" and address is not None:
        raise KvsimError("address must be left out with the backend local")
    function = trusting_as_here(function)
    with ExitStack() as held:
        if backend == "local":
            once = _local(function, jobs)
        else:
            once = held.enter_context(_CLUSTERS[backend](function, jobs, address))
        with closing(_until_done(once, arguments, backend, lost)) as found:
            yield found


Todo = Sequence[tuple[int, tuple[Any, ...]]]
Once = Callable[[Todo, bool, bool], Generator[tuple[int, Any], None, None]]
"""Runs numbered calls, optionally in separate processes or one at a time. Yields numbered results, and an
`Ended` for a call that killed its process; raises if a machine is lost."""


def _until_done(
    once: Once, arguments: Sequence[tuple[Any, ...]], backend: str, lost: Callable[[str], Any]
) -> Generator[tuple[int, Any], None, None]:
    left = dict(enumerate(arguments))
    suspects: set[int] = set()
    losses, apart = 0, False
    while left:
        others = [each for each in left.items() if each[0] not in suspects]
        try:
            with closing(once(others or [*left.items()], apart, not others)) as found:
                for number, value in found:
                    losses = 0
                    ended = isinstance(value, Ended)
                    if ended and number not in suspects:
                        suspects.add(number)
                        continue
                    del left[number]
                    yield number, lost(value.by) if ended else value
        except KvsimError:
            raise
        except Exception as error:
            losses, apart = losses + 1, True
            if losses >= MOST_LOSSES:
                raise KvsimError(
                    f"backend {backend} lost its workers {losses} times in a row "
                    f"({type(error).__name__}: {error}); {len(left):,} runs are left to do"
                ) from error


def _local(function: Callable[..., Any], jobs: int) -> Once:
    def once(todo: Todo, apart: bool, alone: bool) -> Generator[tuple[int, Any], None, None]:
        with unordered_apart(function, [each for _, each in todo], 1 if alone else jobs) as found:
            for place, value in found:
                yield todo[place][0], value

    return once


def _through_joblib(
    function: Callable[..., Any], cores: Callable[[], int], name: str, **options: float
) -> Once:
    """Submit calls through a registered joblib backend, to as many cores as there currently are."""
    from joblib import Parallel, delayed, parallel_config

    def once(todo: Todo, apart: bool, alone: bool) -> Generator[tuple[int, Any], None, None]:
        many = max(cores(), 1)
        call = _numbered_apart if apart or many == 1 else _numbered  # for one, joblib uses this process
        with parallel_config(backend=name, n_jobs=many, **options):
            for part in [[each] for each in todo] if alone else [todo]:
                hand_out = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="all")
                yield from hand_out(delayed(call)(function, number, each) for number, each in part)

    return once


def _numbered(function: Callable[..., T], number: int, arguments: tuple[Any, ...]) -> tuple[int, T]:
    return number, function(*arguments)


def _numbered_apart(
    function: Callable[..., T], number: int, arguments: tuple[Any, ...]
) -> tuple[int, T | Ended]:
    return number, carried_out_apart(function, arguments)


@contextmanager
def _dask(function: Callable[..., Any], jobs: int, address: str | None) -> Iterator[Once]:
    try:
        import dask
        from distributed import Client, LocalCluster
        from joblib import register_parallel_backend
        from joblib._dask import DaskDistributedBackend
    except ImportError as error:
        raise KvsimError("backend dask needs dask: pip install '.[dask]' in a clone of kvsim") from error

    class Heard(DaskDistributedBackend):  # type: ignore[misc]
        """Also reports tasks that Dask gives up on; joblib's own backend waits for them forever."""

        def submit(self, func: Any, callback: Any = None) -> Any:  # noqa: ANN401 - as joblib has them
            future = super().submit(func, callback)
            future.add_done_callback(lambda done: callback(done) if done.exception() else None)
            return future

        def retrieve_result_callback(self, out: Any) -> Any:  # noqa: ANN401
            return super().retrieve_result_callback(out.result() if isinstance(out, Future) else out)

    register_parallel_backend("kvsim-dask", Heard)
    with ExitStack() as held:
        if address is None:
            held.enter_context(dask.config.set(_OWN_DASK))
            address = held.enter_context(
                LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None, silence_logs=50)
            )
        client = held.enter_context(Client(address, set_as_default=True))
        yield _through_joblib(function, lambda: sum(client.ncores().values()), "kvsim-dask", **_DASK_WAITS)


@contextmanager
def _ray(function: Callable[..., Any], jobs: int, address: str | None) -> Iterator[Once]:
    try:
        import ray
        from joblib import register_parallel_backend
        from ray.util.joblib.ray_backend import RayBackend
    except ImportError as error:
        raise KvsimError("backend ray needs ray: pip install '.[ray]' in a clone of kvsim") from error

    class Unordered(RayBackend):
        """Yields results as they arrive; Ray's pool supports it."""

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
