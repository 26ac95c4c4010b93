"""Who imports whom, what every module says of itself, and what a wheel must hold."""

import ast
import graphlib
import sys
import tomllib
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import pytest
from setuptools import find_packages

from kvsim import cli
from kvsim.sim.parts import KINDS, part_named

ROOT = Path(cli.__file__).resolve().parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
TOPS = ("allocators", "sim", "workloads", "kernels", "reports")
PACKAGES = [name for name in TOPS if (ROOT / name).is_dir()]
FACE = [
    path
    for folder in ("", "commands", "command_line")
    for path in sorted((ROOT / "kvsim" / folder).glob("*.py"))
    if not path.is_symlink()
]
"""What `import kvsim` offers, beside the links to the packages."""
MODULES = [ROOT / "cli.py", *(path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py")))]

OURS = {
    "cli": {"commands", "command_line", *TOPS} | {path.stem for path in FACE},
    "reports": {"sim", "allocators"},
    "workloads": {"sim"},
    "sim": {"allocators"},
    "allocators": set(),
    "kernels": set(),
}
"""Top-level package -> what of ours it may import, beside itself."""

OTHERS = {
    "cli": {"typer", "rich"},
    "reports": {
        "numpy",
        "pyarrow",
        "rich",
        "matplotlib",
        "cloudpickle",
        "platformdirs",
        "joblib",
        "ray",
        "dask",
        "distributed",
    },
    "workloads": {"numpy", "pyarrow", "pooch", "tokenizers"},
    "sim": {
        "mypy_extensions",
        "numpy",
        "platformdirs",
        "pyarrow",
        "simpy",
    },  # pyarrow: sim/files/tables.py, which all may use
    "allocators": {"mypy_extensions"},
    "kernels": {"numpy", "torch", "triton"},
}
"""Top-level package -> what it may import of others, beside the standard library."""

ROOMS = (
    ("sim", "errors", "counted", "sources"),
    ("checks", "files", "measured", "option", "profiles"),
    ("models", "workload", "complaints"),
    ("kv",),
    (
        *("routers", "serving", "schedulers", "policies", "predictors", "record", "cost", "deployment"),
        *("plugins", "classes"),
    ),
    ("build", "content", "eviction", "parts"),
    ("starts",),
    ("contract", "fleet_summary", "link_summary", "options", "run"),
    ("fit", "bench", "validate"),
)
"""The rooms and files of sim/, from the ground up: each imports those of its own tier and below."""

ONLY_IN = {
    "dask": ["reports/backends.py"],
    "distributed": ["reports/backends.py"],
    "joblib": ["reports/backends.py"],
    "ray": ["reports/backends.py"],
    "matplotlib": ["reports/figures/"],
    "simpy": [
        "sim/serving/alarm.py",
        "sim/serving/arrivals.py",
        "sim/serving/engine.py",
        "sim/serving/replica.py",
    ],
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


@cache
def imports_of(path):
    """The import statements of a module, wherever they stand, as a tree."""
    tree = parsed(path)
    tree.body = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return tree


def module_name(path):
    """The name by which a file is imported: kvsim.sim.serving.engine, kvsim.cli; a package by its own."""
    parts = [part for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__"]
    return ".".join(parts if parts[0] == "kvsim" else ["kvsim", *parts])


def above(name):
    """The packages that Python imports before the module of that name."""
    parts = name.split(".")
    return {".".join(parts[:length]) for length in range(1, len(parts))}


def needed(name, tree, modules):
    """Which of `modules` a module imports, wherever it does; packages that it lies in only if it says so."""
    said = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            said |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            said |= whole
            if not whole <= modules:
                said.add(node.module)
    with_packages = said | {package for one in said for package in above(one) - above(name)}
    return with_packages & modules - {name}


def room_of(name):
    """The room of sim/ that a module lies in, or the file that it is."""
    return (*name.split("."), "sim")[2]


def circle(graph):
    """Modules that import each other in a circle, none if there is no circle."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


def test_imports_go_one_way():
    wrong = {}
    for path in MODULES:
        part = relative(path).partition("/")[0].removesuffix(".py")
        allowed = OURS[part] | OTHERS[part] | {part} | sys.stdlib_module_names
        wrong[relative(path)] = {name for name, _ in imports(imports_of(path))} - allowed
    assert not {path: names for path, names in wrong.items() if names}


def test_no_modules_import_each_other_in_a_circle():
    trees = {module_name(path): imports_of(path) for path in (*MODULES, *FACE)}
    graph = {name: needed(name, tree, trees.keys()) for name, tree in trees.items()}
    assert sum(len(names) for names in graph.values()) > len(graph)
    assert not circle(graph)


def test_a_circle_of_imports_is_found():
    sources = {
        "kvsim": "",
        "kvsim.one": "from kvsim.two import name",
        "kvsim.two": "if TYPE_CHECKING:\n    from kvsim import three",
        "kvsim.three": "def function():\n    import kvsim.one",
        "kvsim.four": "from kvsim.one import name",
    }
    graph = {name: needed(name, ast.parse(text), sources.keys()) for name, text in sources.items()}
    assert set(circle(graph)) == {"kvsim.one", "kvsim.two", "kvsim.three"}
    graph["kvsim.three"].clear()
    assert not circle(graph)


def test_the_rooms_of_sim_import_one_way():
    names = {path: module_name(path) for path in MODULES if relative(path).startswith("sim/")}
    known = set(names.values())
    tier = {room: height for height, rooms in enumerate(ROOMS) for room in rooms}
    up = {
        (name, other)
        for path, name in names.items()
        for other in needed(name, imports_of(path), known)
        if tier[room_of(name)] < tier[room_of(other)]
    }
    assert tier.keys() == {room_of(name) for name in known}
    assert not up


def test_nobody_below_imports_the_face():
    faces = {"commands", "command_line", *(path.stem for path in FACE if path.parent.name == "kvsim")}
    assert [relative(path) for path in MODULES if faces & dict(imports(imports_of(path))).keys()] == [
        "cli.py"
    ]


@pytest.mark.parametrize("library", ONLY_IN)
def test_few_files_alone_import_it(library):
    importing = [relative(path) for path in MODULES if library in dict(imports(imports_of(path)))]
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


@pytest.mark.slow
def test_every_module_says_what_it_is():
    files = [*MODULES, *FACE, *(ROOT / "tests").rglob("*.py")]
    assert not [relative(path) for path in files if not ast.get_docstring(parsed(path))]


def test_the_tests_have_a_folder_for_each_package():
    """And few others; every test lies in one, beside the helpers and the data."""
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert folders == {*TOPS, "cli", "face", "project", "fuzz", "support", "data"}
    assert not list((ROOT / "tests").glob("*.py"))
    assert not [path for place in ("support", "data") for path in (ROOT / "tests" / place).rglob("test_*.py")]


def test_the_wheel_has_every_package_and_the_command():
    found = {relative(path.parent).replace("/", ".") for path in MODULES if path.name == "__init__.py"}
    assert {relative(path.parent).replace("/", ".") for path in MODULES} - {"."} == found
    found |= {path.parent.name for path in FACE if path.parent.name != "kvsim"}
    packages = find_packages(str(ROOT), include=PROJECT["tool"]["setuptools"]["packages"]["find"]["include"])
    assert sorted(packages) == sorted(["kvsim", *(f"kvsim.{name}" for name in found)])
    assert PROJECT["project"]["scripts"] == {"sim": "kvsim.__main__:main"}


def test_options_are_declared_in_modules_that_stay_python():
    """A compiled dataclass forgets what `int | None` said, and nobody could subclass it."""
    parts = [part_named(kind, name) for kind, (table, _) in KINDS.items() for name in table]
    declared = {part.declares.__module__ for part in parts}
    assert "kvsim.sim.schedulers.vllm_options" in declared
    assert not declared & set(PROJECT["tool"]["kvsim"]["compiled"])


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
    assert declared == there | {"kvsim/py.typed"}
    for package, name in (
        ("kvsim.sim.models", "models.toml"),
        ("kvsim.sim.models", "model_configs.toml"),
        ("kvsim.sim.models", "gpus.toml"),
        ("kvsim.workloads.data", "sharegpt.parquet"),
    ):
        assert f"{package.removeprefix('kvsim.').replace('.', '/')}/{name}" in declared
        assert resources.files(package).joinpath(name).read_bytes()


def test_the_licence_is_part_of_it():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text and "Copyright 2026 The kvsim authors" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert PROJECT["project"]["license-files"] == ["LICENSE", "NOTICE"]
