"""The same function on many arguments, in several processes that end with this one.

    this process                      a worker, in a session of its own
    a thread per worker  --task-->    reports/worker.py: carry it out
                         <--result--  (its pipes are its life: when this process is gone, so is it)

A worker starts with this process's list of places for modules, and not with the working directory. An
exception of a worker is raised here. Whatever ends the block, a signal too, kills the workers at once.
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from kvsim.sim.errors import KvsimError
from kvsim.sim.files.stopping import at_forced_exit, unstoppable

T = TypeVar("T")

_START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); import json; "
    "sys.path[:], home = json.loads(sys.argv[1]); sys.path.append(home); "
    "from kvsim.reports.worker import serve; sys.path.pop(); serve()"
)


class WorkerLost(KvsimError):
    """A worker was ended by somebody else."""


@contextmanager
def unordered(
    function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], jobs: int
) -> Iterator[Iterator[tuple[int, T]]]:
    """Give the results as they come, each with the number of its arguments.

    Parameters
    ----------
    function : callable
        It and its arguments are pickled where there are several processes, as what it returns or raises.
    jobs : int
        Processes at most, at least 1; with 1 all is done in this one.

    Raises
    ------
    WorkerLost
        When a worker was ended by somebody else.
    """
    if min(jobs, len(arguments)) <= 1:
        yield ((number, function(*each)) for number, each in enumerate(arguments))
        return
    import cloudpickle

    tasks = [cloudpickle.dumps((function, each)) for each in arguments]
    workers = _Workers[T](tasks, min(jobs, len(tasks)), jobs)
    with at_forced_exit(workers.kill):
        try:
            workers.start()
            yield workers.results()
        finally:
            with unstoppable():
                workers.kill()


class _Workers(Generic[T]):
    """The processes of one block, and what they have not done yet."""

    def __init__(self, tasks: Sequence[bytes], several: int, jobs: int) -> None:
        self._tasks = tasks
        self._several = several
        self._jobs = jobs
        self._next = iter(range(len(tasks)))
        self._lock = Lock()
        self._answers: SimpleQueue[tuple[int, bytes | None]] = SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the processes, each with a thread that gives it work."""
        home = str(Path(__file__).resolve().parents[1])
        if not (Path(home) / "kvsim").is_dir():  # installed, not in a checkout
            home = str(Path(__file__).resolve().parents[2])
        command = [sys.executable, "-P", "-c", _START, json.dumps([sys.path, home])]
        for _ in range(self._several):
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            self._processes.append(process)
            Thread(target=self._work, args=(process,), daemon=True).start()

    def results(self) -> Iterator[tuple[int, T]]:
        """Each result as soon as it is there."""
        for _ in self._tasks:
            number, answer = self._answers.get()
            if answer is None:
                why = "a process was ended, maybe for want of memory: use fewer"
                raise WorkerLost(f"jobs {self._jobs}: {why}")
            fine, value = pickle.loads(answer)
            if not fine:
                raise value
            yield number, value

    def kill(self) -> None:
        """End them all, whatever they do."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()

    def _work(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError, ValueError), process.stdin, process.stdout:
            while True:
                with self._lock:
                    number = next(self._next, None)
                if number is None:
                    return
                answer = None
                with suppress(OSError, EOFError):
                    send(process.stdin.fileno(), self._tasks[number])
                    answer = receive(process.stdout.fileno())
                self._answers.put((number, answer))
                if answer is None:
                    return


def send(file: int, text: bytes) -> None:
    """Write a message to a pipe: its length, then itself."""
    rest = memoryview(len(text).to_bytes(8, "big") + text)
    while rest:
        rest = rest[os.write(file, rest) :]


def receive(file: int) -> bytes:
    """Read a message that `send` wrote; EOFError where the other end is gone."""
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
