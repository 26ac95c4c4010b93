"""Installed from a wheel: one package, no neighbour harmed, nothing run from the working directory."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvsim import cli

ROOT = Path(cli.__file__).resolve().parent
pytestmark = pytest.mark.slow


def run(*command, **options):
    """A command's output; it must succeed."""
    found = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert found.returncode == 0, found.stdout[-1500:] + found.stderr[-1500:]
    return found.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built without the network."""
    source = tmp_path_factory.mktemp("source") / "kvsim"
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "runs", "tests")
    shutil.copytree(ROOT, source, symlinks=True, ignore=ignored)
    out = tmp_path_factory.mktemp("wheels")
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(out)]
    run(sys.executable, "-m", "pip", "wheel", *options, str(source))
    (found,) = out.iterdir()
    return found


def environment(home):
    """A Python of its own without pip: its site-packages, and the pip of this one that works on it."""
    run(sys.executable, "-m", "venv", "--without-pip", str(home))
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin/python"), "--quiet"]
    return next((home / "lib").glob("python*/site-packages")), pip


@pytest.fixture(scope="module")
def installed(tmp_path_factory, wheel):
    """A Python of its own with a package `kernels` that was there first, then kvsim.

    What kvsim depends on comes from this environment.
    """
    home = tmp_path_factory.mktemp("installed")
    site, pip = environment(home)
    other = tmp_path_factory.mktemp("other")
    (other / "kernels").mkdir()
    (other / "kernels/__init__.py").write_text("def get_kernel():\n    return 'the other one'\n")
    (other / "pyproject.toml").write_text('[project]\nname = "kernels"\nversion = "0.1"\n')
    run(*pip, "install", "--no-deps", "--no-build-isolation", str(other), env=_with_setuptools(site))
    before = {path.name for path in site.iterdir()}
    run(*pip, "install", "--no-deps", str(wheel))
    added = {path.name for path in site.iterdir()} - before
    beside = [path for path in sys.path if path.endswith("site-packages")]
    (site / "beside.pth").write_text("\n".join(beside))
    return home, site, pip, added


def _with_setuptools(site):
    beside = os.pathsep.join(path for path in sys.path if path.endswith("site-packages"))
    return os.environ | {"PYTHONPATH": beside}


def test_the_wheel_puts_nothing_but_kvsim_into_site_packages(wheel, installed):
    with zipfile.ZipFile(wheel) as file:
        tops = {name.partition("/")[0] for name in file.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kvsim"}
    _, _, _, added = installed
    assert {name for name in added if not name.endswith(".dist-info")} == {"kvsim"}


def test_links_and_pictures_of_the_index_page_are_whole(wheel):
    with zipfile.ZipFile(wheel) as file:
        (name,) = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = file.read(name).decode()
    targets = re.findall(r"\]\(([^)]+)\)", metadata)
    assert "https://github.com/kvsim/kvsim/raw/main/docs/images/waste.png" in targets
    assert all(target.startswith("https://") for target in targets)
    assert "\nDescription-Content-Type: text/markdown\n" in metadata
    assert "\nAuthor: kvsim contributors\n" in metadata


def test_both_packages_work(installed, tmp_path):
    home, _, _, _ = installed
    code = "import kernels, kvsim.kernels; print(kernels.get_kernel(), kvsim.kernels.__name__)"
    assert run(str(home / "bin/python"), "-c", code, cwd=tmp_path) == "the other one kvsim.kernels\n"


def test_the_command_and_the_module_run_with_a_users_own_files_in_the_way(installed, tmp_path):
    home, site, _, _ = installed
    for name in ("sim", "allocators", "cli", "reports", "kvsim_extra", "pandas", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported from the working directory')\n")
    (tmp_path / "allocators").mkdir()
    (tmp_path / "allocators/__init__.py").write_text(
        "raise SystemExit('imported from the working directory')\n"
    )
    arguments = ["run", "--num-prompts", "20", "--no-plots"]
    for command in ([str(home / "bin/sim")], [str(home / "bin/python"), "-m", "kvsim"]):
        out = run(*command, *arguments, cwd=tmp_path)
        assert "paged served 20 requests" in out
    assert (site / "kvsim/sim/models/models.toml").is_file()


def test_uninstalling_leaves_the_neighbour_alone(installed, tmp_path):
    home, site, pip, _ = installed
    run(*pip, "uninstall", "--yes", "kvsim")
    assert not (site / "kvsim").exists()
    code = "import kernels; print(kernels.get_kernel())"
    assert run(str(home / "bin/python"), "-c", code, cwd=tmp_path) == "the other one\n"


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory):
    """A Python of its own with Hugging Face's package `kernels`, without what that depends on."""
    home = tmp_path_factory.mktemp("hugging-face")
    site, pip = environment(home)
    command = [
        *pip,
        "install",
        "--no-deps",
        "--retries",
        "1",
        "--timeout",
        "10",
        "--disable-pip-version-check",
    ]
    answer = subprocess.run([*command, "kernels"], capture_output=True, text=True, check=False)
    if answer.returncode:
        other = tmp_path_factory.mktemp("anything") / "there"
        reached = subprocess.run([*command, "--target", other, "simpy"], capture_output=True, check=False)
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        if os.environ.get("CI") and not reached.returncode:
            pytest.fail(f"pip installs simpy, but not kernels: {last}")
        pytest.skip(f"pip cannot install Hugging Face's kernels here: {last}")
    return home, site, pip


def contents(site, package):
    """File -> digest of everything that a package and its metadata hold; compiled files aside."""
    return {
        path.relative_to(site).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for top in (site / package, *site.glob(f"{package}-*.dist-info"))
        for path in sorted(top.rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }


def test_hugging_faces_kernels_is_untouched(hugging_face, wheel, tmp_path):
    home, site, pip = hugging_face
    before = contents(site, "kernels")
    assert {"kernels/__init__.py"} < before.keys()
    run(*pip, "install", "--no-deps", str(wheel))
    assert contents(site, "kernels") == before
    code = "from importlib.util import find_spec as f; print(f('kernels').origin, f('kvsim.kernels').origin)"
    origins = f"{site / 'kernels/__init__.py'} {site / 'kvsim/kernels/__init__.py'}\n"
    assert run(str(home / "bin/python"), "-c", code, cwd=tmp_path) == origins
    run(*pip, "uninstall", "--yes", "kvsim")
    assert not (site / "kvsim").exists()
    assert contents(site, "kernels") == before
