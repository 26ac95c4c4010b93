"""What a release uploads: one version everywhere, and wheels for the Pythons that the project names."""

import os
import re
import tomllib
from pathlib import Path

from kvsim import cli
from kvsim.sim import __version__

ROOT = Path(cli.__file__).resolve().parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_the_same_in_the_package_the_citation_and_the_changelog():
    (cited,) = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    numbered = re.findall(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert cited == numbered[0] == __version__


def test_documents_name_no_other_version_of_kvsim():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {
        found for page in pages for found in re.findall(r"kvsim[ =]+v?(\d+\.\d+\.\d+)", page.read_text())
    }
    assert named <= {__version__}


def test_compiled_wheels_are_built_compiled_and_tried():
    wheels = PYPROJECT["tool"]["cibuildwheel"]
    least = PYPROJECT["project"]["requires-python"].removeprefix(">=").replace(".", "")
    assert wheels["environment"] == {"KVSIM_COMPILE": "1"} and "sim run" in wheels["test-command"]
    assert wheels["build"].split()[0] == f"cp{least}-*"


def test_the_command_of_a_release_may_be_run():
    assert os.access(ROOT / ".ci/release", os.X_OK)
