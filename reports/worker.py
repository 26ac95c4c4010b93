"""A worker of reports/processes.py: carries out what comes in, until the other end is gone."""

import os
import pickle
import sys
import traceback
from queue import SimpleQueue
from threading import Thread

from kvsim.reports.processes import receive, send


def serve() -> None:
    """Carry out tasks until there are no more; end at once, in the middle of one, if the sender ends."""
    incoming, outgoing = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what somebody's code prints must not get between the results
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
    """Whether it went well, and what came out or was raised; pickled."""
    import cloudpickle

    try:
        function, arguments = pickle.loads(task)
        return cloudpickle.dumps((True, function(*arguments)))
    except BaseException as error:
        if hasattr(error, "add_note") and type(error).__module__.partition(".")[0] != "kvsim":
            error.add_note("in a worker:\n" + "".join(traceback.format_exception(error)))
        try:
            text = cloudpickle.dumps((False, error))
            pickle.loads(text)  # some exceptions cannot be made again from what they are pickled as
            return text
        except Exception:
            words = "".join(traceback.format_exception(error))
            return cloudpickle.dumps((False, RuntimeError(f"in a worker:\n{words}")))
        finally:
            sys.stderr.flush()
