"""The README as a package index shows it: its links and pictures point into the repository.

Everything else about the package stands in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent


def absolute(text: str, repository: str) -> str:
    """The text with links and pictures that work away from the repository."""
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\g<1>{repository}/raw/main/", text)
    return re.sub(r"(?<!!)(\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{repository}/blob/main/", text)


project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
setup(
    long_description=absolute(
        (ROOT / "README.md").read_text(encoding="utf-8"), project["urls"]["Repository"]
    ),
    long_description_content_type="text/markdown",
)
