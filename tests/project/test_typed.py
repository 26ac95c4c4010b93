"""What others build on: types that their mypy sees, one KvsimError, tests that run with `dev` alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kvsim
from kvsim import cli

ROOT = Path(cli.__file__).resolve().parent
USER = """
import kvsim

run = kvsim.simulate(model="llama-3.1-8b", num_prompts=10)
reveal_type(run)
reveal_type(run.summary.latency.ttft_s.p99)
reveal_type(kvsim.compare(["paged", "contiguous"]))
reveal_type(kvsim.load)
try:
    kvsim.simulate(42)
except kvsim.KvsimError as error:
    reveal_type(error)
"""


def ran(*command, **more):
    """A program in a process of its own, without what CI says."""
    env = {name: value for name, value in os.environ.items() if name != "CI"} | more.pop("env", {})
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, **more)


@pytest.mark.slow
def test_mypy_sees_real_types_in_a_users_file(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    site = tmp_path / "site"  # as pip leaves it: a folder of packages, which mypy reads as py.typed allows
    site.mkdir()
    (site / "kvsim").symlink_to(ROOT / "kvsim")
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")]
    found = ran(*command, "user.py", cwd=tmp_path, env={"MYPYPATH": str(site)})
    said = [line.partition("note: ")[2] for line in found.stdout.splitlines() if "Revealed type" in line]
    assert [line.split('"')[1] for line in said[:3]] == [
        "kvsim.results.Run",
        "float | None",
        "kvsim.results.Comparison",
    ]
    assert "-> kvsim.results.Run | kvsim.results.Comparison" in said[3]
    assert "kvsim.sim.errors.KvsimError" in said[4]
    own = [line for line in found.stdout.splitlines() if line.startswith("user.py") and "error:" in line]
    assert len(own) == 1 and 'Argument 1 to "simulate" has incompatible type "int"' in own[0]


def test_the_marker_of_types_is_there_and_ships():
    assert (ROOT / "kvsim" / "py.typed").is_file()
    assert 'kvsim" = ["py.typed"]' in (ROOT / "pyproject.toml").read_text()


def test_there_is_one_error_whatever_path_it_is_imported_by():
    code = (
        "import sim.errors, kvsim.sim.errors, kvsim; from sim.errors import KvsimError as one; "
        "assert one is kvsim.sim.errors.KvsimError is kvsim.KvsimError is sim.errors.KvsimError"
    )
    found = ran(sys.executable, "-c", code, cwd=ROOT)
    assert (found.returncode, found.stderr) == (0, "")
    first = "from sim.errors import KvsimError; import kvsim; assert kvsim.KvsimError is KvsimError"
    assert ran(sys.executable, "-c", first, cwd=ROOT).returncode == 0


def test_what_needs_an_optional_package_is_skipped_with_its_reason_outside_ci(tmp_path):
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "hidden.py").write_text("import sys\nsys.modules['torch'] = sys.modules['ray'] = None\n")
    (tmp_path / "test_whole.py").write_text("import torch\n\n\ndef test_it():\n    assert torch\n")
    (tmp_path / "test_one.py").write_text(
        "from kvsim.sim.errors import KvsimError\n\n\ndef test_it():\n    try:\n        import ray\n"
        "    except ImportError as error:\n        raise KvsimError('needs ray') from error\n"
    )
    (tmp_path / "test_broken.py").write_text("def test_it():\n    import no_such_module\n")
    command = [sys.executable, "-m", "pytest", "-p", "hidden", "-p", "no:cacheprovider", "-q", "-rs"]
    env = {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "tests")))}
    found = ran(*command, cwd=tmp_path, env=env)
    assert "1 failed, 2 skipped" in found.stdout and "no_such_module" in found.stdout
    for name in ("torch", "ray"):
        assert f"{name} is not installed: pip install -e '.[test]'" in found.stdout
    assert "1 failed, 2 skipped" not in ran(*command, cwd=tmp_path, env=env | {"CI": "1"}).stdout


def test_what_is_offered_is_what_the_stable_page_lists():
    page = (ROOT / "docs" / "stable.md").read_text(encoding="utf-8")
    reference = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in kvsim.__all__:
        assert f"`{name}`" in page
        assert name == "__version__" or f"## kvsim.{name}\n" in reference


def test_the_reference_is_made_from_the_docstrings():
    from kvsim.api_page import reference

    assert (ROOT / "docs" / "api.md").read_text(encoding="utf-8") == reference()
