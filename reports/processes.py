"""Call one function on many arguments, in several processes that end with this one.

    this process                      a worker, in a session of its own
    a thread per worker  --task-->    reports/worker.py: run it
                         <--result--  (it ends when its pipes close: when this process is gone)

A worker has this process's module search path, without the working directory. Its exceptions are raised here.
However the block ends, including by a signal, the workers are killed immediately. A worker that dies for
another reason (a crash, out of memory) raises an error; with `apart`, its task's result is an `Ended`,
another worker replaces it, and the other tasks are not affected.
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from signal import Signals
from threading import Lock, Thread, local
from typing import Any, Generic, TypeVar

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.stopping import at_forced_exit, unstoppable
from kvsim.sim.plugins import trusting_as_here

T = TypeVar("T")

_START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); import json; "
    "sys.path[:], home = json.loads(sys.argv[1]); sys.path.append(home); "
    "from kvsim.reports.worker import serve; sys.path.pop(); serve()"
)


class WorkerLost(KvsimError):
    """A worker died unexpectedly."""


@dataclass(frozen=True)
class Ended:
    """Replaces the result of a call whose process was ended; `by` names the cause."""

    by: str


@contextmanager
def unordered(
    function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], jobs: int
) -> Iterator[Iterator[tuple[int, T]]]:
    """Yield results as they arrive, each with the index of its argument.

    Parameters
    ----------
    function : callable
        Pickled if there are several processes, as are its arguments, results and exceptions.
    jobs : int
        Maximum number of processes, at least 1; with 1 everything runs in this process.

    Raises
    ------
    WorkerLost
        If a worker died unexpectedly.
    """
    function = trusting_as_here(function)
    if min(jobs, len(arguments)) <= 1:
        yield ((number, function(*each)) for number, each in enumerate(arguments))
        return
    with unordered_apart(function, arguments, jobs) as found:
        yield _none_ended(found, jobs)


@contextmanager
def unordered_apart(
    function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], jobs: int
) -> Iterator[Iterator[tuple[int, T | Ended]]]:
    """Like `unordered`, but never in this process; a worker that dies unexpectedly yields an `Ended`."""
    import cloudpickle

    tasks = [cloudpickle.dumps((function, each)) for each in arguments]
    workers = _Workers[T](tasks, min(jobs, len(tasks)))
    with at_forced_exit(workers.kill):
        try:
            workers.start()
            yield workers.results()
        finally:
            with unstoppable():
                workers.kill()


def carried_out_apart(function: Callable[..., T], arguments: tuple[Any, ...]) -> T | Ended:
    """The result of one call in a separate process, which is kept for this thread's next call."""
    import cloudpickle

    worker: Worker | None = getattr(_KEPT, "worker", None)
    if worker is None:
        worker = _KEPT.worker = Worker()
    answer = worker.asked(cloudpickle.dumps((function, arguments)))
    if answer is None:
        del _KEPT.worker
        return worker.ended()
    return _value(answer)


_KEPT = local()


def _none_ended(found: Iterator[tuple[int, T | Ended]], jobs: int) -> Iterator[tuple[int, T]]:
    for number, value in found:
        if isinstance(value, Ended):
            raise WorkerLost(f"jobs {jobs}: a process was ended by {value.by}: use fewer")
        yield number, value


def _value(answer: bytes) -> Any:  # noqa: ANN401 - whatever the function returns
    fine, value = pickle.loads(answer)
    if not fine:
        raise value
    return value


class Worker:
    """One process that runs tasks one after the other."""

    def __init__(self) -> None:
        home = str(Path(__file__).resolve().parents[1])
        if not (Path(home) / "kvsim").is_dir():  # installed, not in a checkout
            home = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, json.dumps([sys.path, home])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def asked(self, task: bytes) -> bytes | None:
        """Send a task and return the answer; None if the process ended meanwhile."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError, EOFError, ValueError):
            send(self._process.stdin.fileno(), task)
            return receive(self._process.stdout.fileno())
        return None

    def ended(self) -> Ended:
        """Why a process ended without an answer."""
        code = self._process.wait()
        self.close()
        if code >= 0:
            return Ended(f"exit code {code}")
        name = Signals(-code).name if -code in {*Signals} else f"signal {-code}"
        return Ended(f"{name}, maybe for want of memory" if name == "SIGKILL" else name)

    def kill(self) -> None:
        """Kill the process, even if it is busy."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Let the process end once it is idle."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


class _Workers(Generic[T]):
    """The processes of one block, and their remaining tasks."""

    def __init__(self, tasks: Sequence[bytes], several: int) -> None:
        self._tasks = tasks
        self._several = several
        self._next = iter(range(len(tasks)))
        self._lock = Lock()
        self._answers: SimpleQueue[tuple[int, bytes | Ended]] = SimpleQueue()
        self._workers: list[Worker] = []
        self._over = False

    def start(self) -> None:
        """Start the processes, each with a thread that feeds it tasks."""
        for _ in range(self._several):
            Thread(target=self._work, args=(self._started(),), daemon=True).start()

    def results(self) -> Iterator[tuple[int, T | Ended]]:
        """Each result as soon as it arrives."""
        for _ in self._tasks:
            number, answer = self._answers.get()
            yield number, answer if isinstance(answer, Ended) else _value(answer)

    def kill(self) -> None:
        """Kill all processes, even if they are busy."""
        with self._lock:
            self._over = True
            workers = list(self._workers)
        for worker in workers:
            worker.kill()

    def _started(self) -> Worker | None:
        """Start a new process; None if the block is over."""
        with self._lock:
            if self._over:
                return None
            worker = Worker()
            self._workers.append(worker)
            return worker

    def _work(self, worker: Worker | None) -> None:
        while worker is not None:
            with self._lock:
                number = next(self._next, None)
            if number is None:
                worker.close()
                return
            answer = worker.asked(self._tasks[number])
            if answer is not None:
                self._answers.put((number, answer))
                continue
            with self._lock:
                self._workers.remove(worker)
            self._answers.put((number, worker.ended()))
            worker = self._started()


def send(file: int, text: bytes) -> None:
    """Write a message to a pipe: its length, then itself."""
    rest = memoryview(len(text).to_bytes(8, "big") + text)
    while rest:
        rest = rest[os.write(file, rest) :]


def receive(file: int) -> bytes:
    """Read a message that `send` wrote; EOFError if the other end is gone."""
    return _read(file, int.from_bytes(_read(file, 8), "big"))


def _read(file: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(file, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
