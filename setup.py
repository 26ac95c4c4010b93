"""What pyproject.toml cannot express: the README with full links, and modules compiled on demand (mypyc).

    KVSIM_COMPILE=1 pip install .        compiles the modules named in [tool.kvsim] of pyproject.toml

The compiled modules are the same files; without a C compiler, or in an editable install, all stays Python.
Everything else about the package is in pyproject.toml.
"""

import ast
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BUILDS = {"build", "build_ext", "bdist_wheel", "install"}
"""Commands that need the extension modules; others only query the package's metadata."""
TYPES = """
[mypy]
ignore_missing_imports = true
[mypy-kvsim,kvsim.api,kvsim.commands.run,kvsim.commands.repeat,kvsim.results,kvsim.reports.*,kvsim.workloads.*]
follow_imports = skip
"""
"""How mypy reads the modules before they are compiled: without the parts above them."""


def absolute(text: str, repository: str) -> str:
    """The text with links and pictures that work outside the repository."""
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\g<1>{repository}/raw/main/", text)
    return re.sub(r"(?<!!)(\[[^\]]*\]\()(?!https?:|#)", rf"\g<1>{repository}/blob/main/", text)


def compiles() -> bool:
    """Whether there is a C compiler that finds Python's own headers."""
    with TemporaryDirectory() as folder:
        source = Path(folder, "try.c")
        source.write_text("#include <Python.h>\n")
        command = (sysconfig.get_config_var("CC") or "cc").split()
        include = f"-I{sysconfig.get_paths()['include']}"
        try:
            made = subprocess.run(
                [*command, include, "-c", str(source), "-o", str(Path(folder, "try.o"))],
                capture_output=True,
                check=False,
            )
        except OSError:
            return False
        return made.returncode == 0


def documented(source: Path) -> None:
    """Give the functions in a module's C source the docstrings of its Python source, for help()."""
    module = Path(*source.stem.removeprefix("__native_").split("___")).with_suffix(".py")
    tree = ast.parse(module.read_text("utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    docs = {
        f"{'___' + holder.name if isinstance(holder, ast.ClassDef) else ''}___{node.name}": ast.get_docstring(
            node
        )
        for holder in (tree, *classes)
        for node in holder.body
        if isinstance(node, ast.FunctionDef)
    }

    def with_doc(found: re.Match[str]) -> str:
        doc = next((doc for name, doc in docs.items() if doc and found[2].endswith(name)), None)
        return found[1] + (json.dumps(doc)[1:-1] if doc else "") + '")'

    entry = r'(\(PyCFunction\)(CPyPy_\w+),\s*[\w| ]+,\s*PyDoc_STR\("[^"]*\\n--\\n\\n)"\)'
    source.write_text(re.sub(entry, with_doc, source.read_text("utf-8")), "utf-8")


def compiled() -> list[Extension]:
    """The extension modules; none if not requested, or if nothing can be compiled, which prints a line."""
    if os.environ.get("KVSIM_COMPILE", "0") in ("", "0") or not BUILDS & set(sys.argv):
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        print("kvsim: not compiled, as mypy is not installed: all modules stay Python", file=sys.stderr)
        return []
    if not compiles():
        print("kvsim: not compiled, as no C compiler works here: all modules stay Python", file=sys.stderr)
        return []
    os.chdir(ROOT)
    files = [f"{name.replace('.', '/')}.py" for name in PYPROJECT["tool"]["kvsim"]["compiled"]]
    with TemporaryDirectory() as folder:
        config = Path(folder, "mypy.ini")
        config.write_text(TYPES)
        level = os.environ.get("KVSIM_COMPILE_LEVEL", "3")
        found = mypycify(
            [f"--config-file={config}", *files],
            only_compile_paths=files,
            opt_level=level,
            debug_level="0",  # debug information of the C is not needed, and takes time
            multi_file=True,
            group_name="kvsim",
        )
    for source in {Path(each) for extension in found for each in extension.sources}:
        if source.name.startswith("__native_kvsim___"):
            documented(source)
    if os.name != "nt":
        for extension in found:
            # a * b + c is rounded twice, as in Python, on every processor; modules call each other directly
            extension.extra_compile_args += ["-ffp-contract=off", "-fvisibility=hidden"]
    return found


asked = os.environ.get("KVSIM_COMPILE", "0") not in ("", "0")
setup(
    long_description=absolute(
        (ROOT / "README.md").read_text(encoding="utf-8"), PYPROJECT["project"]["urls"]["Repository"]
    ),
    long_description_content_type="text/markdown",
    setup_requires=PYPROJECT["tool"]["kvsim"]["compiler"] if asked else [],
    ext_modules=compiled(),
)
