"""A worker of reports/processes.py: runs incoming tasks until the other end is gone."""

import os
import pickle
import sys
import traceback
from queue import SimpleQueue
from threading import Thread

from kvsim.reports.processes import receive, send


def serve() -> None:
    """Run tasks until there are no more; exit immediately, even during a task, if the sender ends."""
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # a task's output must not mix with the results
    tasks: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_listen, args=(incoming, tasks), daemon=True).start()
    while True:
        send(outgoing, _carried_out(tasks.get()))


def _listen(incoming: int, tasks: SimpleQueue[bytes]) -> None:
    try:
        while True:
            tasks.put(receive(incoming))
    except (EOFError, OSError):
        os._exit(0)


def _carried_out(task: bytes) -> bytes:
    """Whether the task succeeded, and its result or exception; pickled."""
    import cloudpickle

    try:
        function, arguments = pickle.loads(task)
        return cloudpickle.dumps((True, function(*arguments)))
    except BaseException as error:
        if hasattr(error, "add_note") and type(error).__module__.partition(".")[0] != "kvsim":
            error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
        try:
            text = cloudpickle.dumps((False, error))
            pickle.loads(text)  # some exceptions can be pickled but not unpickled
            return text
        except Exception:
            words = "".join(traceback.format_exception(error))
            return cloudpickle.dumps((False, RuntimeError(f"in a worker:\n{words}")))
        finally:
            sys.stderr.flush()
