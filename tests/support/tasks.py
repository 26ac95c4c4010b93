"""Calls for separate processes, which import this module alone: some end their process."""

import os
import signal

from kvsim.allocators.contiguous import Contiguous
from kvsim.sim.errors import KvsimError


def double(number):
    return 2 * number


def dies_once(path, number):
    """Ends its own process the first time that it is called for this path."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return 2 * number
    os.kill(os.getpid(), signal.SIGKILL)


def always_dies(number):
    os.kill(os.getpid(), signal.SIGKILL)


def refuses(number):
    raise KvsimError(f"not {number}")


def dies_on(chosen, number):
    """Ends its own process, in different ways, if given one of these."""
    if number in chosen:
        os.kill(os.getpid(), signal.SIGSEGV) if number % 2 else os._exit(number)
    return 2 * number


class Crashes(Contiguous):
    """An allocator that ends its process in the middle of a run."""

    def slots_needed(self, tokens, bound):
        os.kill(os.getpid(), signal.SIGSEGV)
