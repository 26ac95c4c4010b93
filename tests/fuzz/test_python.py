"""Odd arguments of the functions in Python: they do their work, or raise a short KvsimError.

By construction: a function of `kvsim.__all__` without arguments here fails a test; keywords are those of its
signature and, where it takes options, all that are declared.
"""

import inspect
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from support.attack import LONGEST_LINE, Told, TooLong, limited, peak_bytes, tried, workers_here

import kvsim
from kvsim.sim.option import options_of
from kvsim.sim.options.scenario import Scenario
from kvsim.sim.options.traffic import Traffic
from kvsim.sim.parts import declared_everywhere

pytestmark = pytest.mark.slow

SMALL = {"num_prompts": 4, "cost": "constant:0.03", "kv_tokens": 3000}
GOOD = {
    "simulate": SMALL,
    "compare": {"systems": ["paged", "buddy"], **SMALL},
    "sweep": {"allocator": ["paged", "buddy"], "jobs": 1, **SMALL},
    "capacity": {"slo": "ttft:p99=1s", "seeds": 1, "jobs": 1, **SMALL},
    "load": {"directory": "seeds/seed-0"},
    "fit": {"model": "llama-3.1-8b", "gpu": "l4"},
    "replay": {"result": "mine.json", "model": "llama-3.1-8b", "gpu": "l4", "cost": "roofline"},
    "check_allocator": {"allocator": "paged", "calls": 2},
    "check_scheduler": {"scheduler": "orca", "workloads": 1},
}
"""Arguments of each function with which it does little."""
FUNCTIONS = sorted(name for name in kvsim.__all__ if inspect.isfunction(getattr(kvsim, name)))
OPTIONS = [each.name for described in (Scenario, Traffic) for each in options_of(described)]
OPTIONS += declared_everywhere()
CHANGES = ("backend", "address", "out", "jobs")  # where a sweep is computed is no matter of values
ODD = (
    *(None, True, False, -1, 0, 1, 3, 0.5, math.nan, math.inf, -math.inf, 1e308, 10**30),
    *("", "x", "nan", "a\nb", "x" * 5000, "\ud800", "1:2", b"x", Path("x"), Path("x" * 5000)),
    *([], [1], ["x"], [[1]], {}, {"a": 1}, (1, 2), {1}, object(), int, print, lambda: 1),
    *(np.int64(3), np.float64(0.5), np.array([1, 2]), np.array([])),
)


def called(name, arguments):
    """What came of a call: nothing, or the error that it raised."""
    with warnings.catch_warnings(record=True) as warned, limited(), workers_here():
        warnings.simplefilter("always")
        before = peak_bytes(anew=True)
        try:
            getattr(kvsim, name)(**arguments)
            told = Told(0, "", "")
        except kvsim.KvsimError as error:
            told = Told(2, "", str(error))
            assert 9 < len(told.err) < LONGEST_LINE, f"{name}: {told.err!r}"
            assert peak_bytes() - before < 1 << 30, f"{name}: took much memory to refuse"
        except OSError as error:  # of a path, as Python's own functions have it
            told = Told(2, "", str(error))
        except (Exception, TooLong) as error:
            raise AssertionError(f"{type(error).__name__}: {error!s:.300}") from error
    assert not warned, f"{name}: {warned[0].category.__name__}: {warned[0].message}"
    return told


def test_bytes_are_no_list_of_numbers():
    with pytest.raises(kvsim.KvsimError, match="num_prompts must be int, got b'x'"):
        kvsim.sweep(num_prompts=b"x")


def test_counts_are_checked_before_anything_is_made():
    for call in (kvsim.sweep, kvsim.compare):
        with pytest.raises(kvsim.KvsimError, match=r"at most 1.*, got 1,000,000,"):
            call(**({"systems": ["paged"]} if call is kvsim.compare else {}), **SMALL, seeds=10**30)


@pytest.mark.parametrize("name", ["num_gpu_blocks", "kv_tokens"])
def test_a_memory_that_no_engine_can_number_is_told(name):
    with pytest.raises(kvsim.KvsimError, match=f"{name} must be at most 2,147,483,647, got 1,000,"):
        kvsim.simulate(num_prompts=3, **{name: 10**30})


def test_a_number_of_numpy_is_a_number():
    short = {"speculative_method": "ngram", "num_speculative_tokens": np.int64(3)}
    assert kvsim.check_allocator("paged", calls=np.int64(2), seed=np.int64(3))
    assert kvsim.simulate(**SMALL, **short, acceptance_length=np.float64(2)).summary.requests.finished == 4


def test_every_function_is_tried():
    assert sorted(GOOD) == FUNCTIONS, "say in GOOD a call of it that does little"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_odd_arguments(cases, files, name):
    assert called(name, GOOD[name]).code == 0
    known = inspect.signature(getattr(kvsim, name)).parameters
    words = [each.name for each in known.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    words = [word for word in words if word not in CHANGES]
    takes_options = len(words) < len([word for word in known if word not in CHANGES])

    def case(rng):
        arguments = dict(GOOD[name])
        for _ in range(rng.choice([1, 1, 2])):
            given = OPTIONS if takes_options and rng.random() < 0.8 else words
            arguments[rng.choice(given)] = rng.choice(ODD)
        try:
            return called(name, arguments)
        except AssertionError as error:
            changed = {
                word: repr(value)[:60]
                for word, value in arguments.items()
                if value is not GOOD[name].get(word)
            }
            raise AssertionError(f"{changed}: {error}") from error

    tried(f"arguments of {name}", cases(6), case)
