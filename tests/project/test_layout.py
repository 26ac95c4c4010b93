"""Who imports whom, what every module says of itself, and what a wheel must hold."""

import ast
import sys
import tomllib
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import pytest
from setuptools import find_packages

from kvsim import cli

ROOT = Path(cli.__file__).resolve().parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TOPS = ("allocators", "sim", "workloads", "kernels", "reports")
PACKAGES = [name for name in TOPS if (ROOT / name).is_dir()]
FACE = [path for path in sorted((ROOT / "kvsim").glob("*.py")) if not path.is_symlink()]
"""What `import kvsim` offers, beside the links to the packages."""
MODULES = [ROOT / "cli.py", *(path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py")))]

OURS = {
    "cli": {
        "api",
        "calibrating",
        "flags",
        "jobs",
        "repeat",
        "results",
        "sim",
        "allocators",
        "workloads",
        "kernels",
        "reports",
    },
    "reports": {"sim"},
    "workloads": {"sim"},
    "sim": {"allocators"},
    "allocators": set(),
    "kernels": set(),
}
"""Top-level package -> what of ours it may import, beside itself."""

OTHERS = {
    "cli": {"typer", "rich"},
    "reports": {"numpy", "pyarrow", "rich", "matplotlib", "cloudpickle"},
    "workloads": {"numpy", "pyarrow", "pooch", "tokenizers"},
    "sim": {"numpy", "platformdirs", "pyarrow", "simpy"},  # pyarrow: sim/tables.py, which all may use
    "allocators": set(),
    "kernels": {"numpy", "torch", "triton"},
}
"""Top-level package -> what it may import of others, beside the standard library."""

ONLY_IN = {
    "matplotlib": ["reports/figures/"],
    "simpy": ["sim/arrivals.py", "sim/engine.py", "sim/replica.py"],
}
"""Library -> the files or folders that alone may import it: what draws; what keeps the time."""

LATE_IN_CLI = {"kernels", "matplotlib", "numpy", "pyarrow", "reports", "rich", "workloads"}
"""What `sim --help` need not wait for."""


def relative(path):
    """A module as the tests name it."""
    return path.relative_to(ROOT).as_posix()


def imports(tree):
    """(top-level name, whole name) of everything that a syntax tree imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            names = (
                [f"kvsim.{alias.name}" for alias in node.names] if node.module == "kvsim" else [node.module]
            )
        else:
            continue
        for name in names:
            ours = name.removeprefix("kvsim.")
            assert ours != name or name.partition(".")[0] not in TOPS, (
                f"line {node.lineno}: {name} is kvsim.{name}"
            )
            yield ours.partition(".")[0], name


def parsed(path):
    """The syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_imports_go_one_way(path):
    part = relative(path).partition("/")[0].removesuffix(".py")
    allowed = OURS[part] | OTHERS[part] | {part} | sys.stdlib_module_names
    assert {name for name, _ in imports(parsed(path))} <= allowed


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_nobody_below_imports_the_face(path):
    faces = {each.stem for each in FACE}
    found = {name for name, _ in imports(parsed(path))} & faces
    assert not found or relative(path) == "cli.py"


def module_name(path):
    """A module as imports name it."""
    return ".".join(["kvsim", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")


def imported_modules(path, known):
    """Which of the known modules a file imports, wherever it does; those in `if TYPE_CHECKING` count too."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return (found & known) - {module_name(path)}


def circles(graph):
    """Groups of modules that import each other, directly or not: those that Tarjan's algorithm finds."""
    numbers, lowest, stack, found = {}, {}, [], []

    def visit(module):
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in numbers:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], numbers[other])
        if lowest[module] == numbers[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(graph):
        if module not in numbers:
            visit(module)
    return found


def test_no_modules_import_each_other_in_a_circle():
    paths = {module_name(path): path for path in MODULES}
    graph = {name: imported_modules(path, paths.keys()) for name, path in paths.items()}
    assert sum(map(len, graph.values())) > len(MODULES)
    assert circles(graph) == []


def test_a_circle_of_imports_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [["b", "c"]]


@pytest.mark.parametrize("library", ONLY_IN)
def test_few_files_alone_import_it(library):
    importing = [relative(path) for path in MODULES if library in dict(imports(parsed(path)))]
    places = {
        next((place for place in ONLY_IN[library] if file.startswith(place)), file) for file in importing
    }
    assert sorted(places) == ONLY_IN[library]


def test_the_command_imports_what_is_slow_only_inside_its_commands():
    tree = parsed(ROOT / "cli.py")
    at_once = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not {name for node in at_once for name, _ in imports(node)} & LATE_IN_CLI


@pytest.mark.parametrize("name", ["cli", *PACKAGES])
def test_each_part_is_the_one_of_this_checkout(name):
    found = find_spec(f"kvsim.{name}")
    assert Path(found.origin).resolve().is_relative_to(ROOT)


@pytest.mark.parametrize("path", [*MODULES, *FACE, *sorted((ROOT / "tests").rglob("*.py"))], ids=relative)
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(parsed(path))


def test_the_wheel_has_every_package_and_the_command():
    found = {relative(path.parent).replace("/", ".") for path in MODULES if path.name == "__init__.py"}
    assert {relative(path.parent).replace("/", ".") for path in MODULES} - {"."} == found
    packages = find_packages(str(ROOT), include=PROJECT["tool"]["setuptools"]["packages"]["find"]["include"])
    assert sorted(packages) == sorted(["kvsim", *(f"kvsim.{name}" for name in found)])
    assert PROJECT["project"]["scripts"] == {"sim": "kvsim.cli:main"}


def test_the_wheel_has_every_data_file():
    """And those that must be there can be read from where the packages are."""
    declared = {
        relative(file)
        for package, patterns in PROJECT["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for file in (ROOT / package.removeprefix("kvsim.").replace(".", "/")).glob(pattern)
    }
    there = {
        relative(path)
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert declared == there
    for package, name in (
        ("kvsim.sim", "models.toml"),
        ("kvsim.sim", "model_configs.toml"),
        ("kvsim.sim", "gpus.toml"),
        ("kvsim.workloads.data", "sharegpt.parquet"),
    ):
        assert f"{package.removeprefix('kvsim.').replace('.', '/')}/{name}" in declared
        assert resources.files(package).joinpath(name).read_bytes()


def test_the_licence_is_part_of_it():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Copyright 2026 The kvsim authors" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert PROJECT["project"]["license-files"] == ["LICENSE"]
