"""Before any test: without a GPU, Triton's kernels are interpreted; the user's profiles are hidden.

The longest modules come first, so that no worker waits for another at the end, and each of their fixtures is
made by one worker. With `-m "not slow"`, modules that are slow as a whole are not even imported.
Hypothesis tries the same examples each time; with `--fuzz N` it looks for others.
Triton reads TRITON_INTERPRET when a kernel is defined, so it is set here, before anything imports triton.
Torch, which takes seconds to import, is queried only if a driver is present.
"""

import atexit
import gc
import os
import re
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

try:
    from hypothesis import settings
except ImportError:  # on a GPU machine, which has what benchmarks/GPU.md names
    settings = None


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--fuzz N`: more cases for tests/fuzz, and others for hypothesis."""
    parser.addoption("--fuzz", type=int, metavar="N", help="cases of each fuzzer (a few, unless given)")


def pytest_configure(config: pytest.Config) -> None:
    """A commit that passed passes again, unless other examples are requested; no example is timed."""
    if settings is None:
        return
    cases = config.getoption("--fuzz")
    settings.register_profile("same", deadline=None, derandomize=True)
    settings.register_profile("others", deadline=None, max_examples=cases or 100)
    settings.load_profile("others" if cases else "same")


@atexit.register
def end_with_the_summary() -> None:
    """Triton's bindings report at exit what they did not free: keep that from below pytest's last line."""
    if "triton" in sys.modules:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


LONGEST = [
    "tests/project/test_compiled.py",
    "tests/kernels/test_legality.py",
    "tests/project/test_gpu_page.py",
    "tests/allocators/test_zoo_mooncake.py",
    "tests/project/test_docs.py",
    "tests/reports/test_backends.py",
    "tests/cli/test_same_bytes.py",
    "tests/project/test_installed.py",
]


OPTIONAL = {
    *("torch", "triton", "ray", "joblib", "dask", "distributed", "playwright", "tokenizers"),
    *("nbclient", "nbformat", "ipykernel"),
}
"""Packages that the extra `dev` leaves out: tests that need one say so and are skipped, except in CI."""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a whole test module that imports a package that is not installed."""
    report = yield
    call = report.__dict__.get("call")
    _skipped(report, call and call.excinfo, str(collector.path))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that needs such a package."""
    report = yield
    _skipped(report, call.excinfo, str(item.path))
    return report


def _skipped(
    report: pytest.CollectReport | pytest.TestReport,
    excinfo: pytest.ExceptionInfo[BaseException] | None,
    path: str,
) -> None:
    """Turn a failure due to a missing optional package into a skip with its reason."""
    if not report.failed or excinfo is None or os.environ.get("CI"):
        return
    error = excinfo.value
    while error is not None:
        name = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
        if name in OPTIONAL:
            report.outcome = "skipped"
            report.longrepr = (path, 0, f"Skipped: {name} is not installed: pip install -e '.[test]'")
            return
        error = error.__cause__ or error.__context__


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first; the others keep their order. Known failures must fail."""
    from support import expected_failures

    expected_failures.mark(items)
    place = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))


def pytest_collection_finish() -> None:
    """From here on Python's search for reference cycles skips the thousands of tests, and is infrequent."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 50)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Whether a module has only slow tests, which were not requested."""
    if config.option.markexpr != "not slow" or not collection_path.match("test_*.py"):
        return None
    slow = re.search(r"^pytestmark = pytest\.mark\.slow$", collection_path.read_text("utf-8"), re.MULTILINE)
    return True if slow else None


@pytest.fixture(scope="session")
def browser() -> Generator[Any, None, None]:
    """Chromium, started by the first test that needs it."""
    from support.browser import launched

    with launched() as browser:
        yield browser


def gpu_there() -> bool:
    """Whether torch can use a GPU."""
    if not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")):
        return False
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes would compile every module again
sys.dont_write_bytecode = False
os.environ["KVSIM_PROFILES"] = str(Path(__file__).parent / "no-profiles")  # not the user's own
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the other cores have tests of their own
if not gpu_there():
    os.environ.setdefault("TRITON_INTERPRET", "1")
