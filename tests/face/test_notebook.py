"""The notebook of docs/ runs from top to bottom and shows what it talks about: numbers, a table, figures."""

import base64
import json
import os
from pathlib import Path

import pytest

from kvsim import cli

ROOT = Path(cli.__file__).resolve().parent
NOTEBOOK = ROOT / "docs/notebook.ipynb"


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def shown(cell, kind):
    """What the last expression of a cell showed, as that kind of content."""
    return [output["data"][kind] for output in cell["outputs"] if kind in output.get("data", {})]


@pytest.fixture(scope="module")
def executed():
    """The notebook after a kernel has run all of its cells; the first that fails raises."""
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    return client(notebook, timeout=120, kernel_name="python3").execute(env=environment)


def test_the_notebook_is_committed_without_outputs():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code_cells(notebook))


@pytest.mark.slow
def test_a_class_of_a_cell_is_checked_and_compared_with_the_built_in_ones(executed):
    checked, compared, table = code_cells(executed)[1:4]
    assert "slots_add_up" in shown(checked, "text/plain")[0]
    assert "paged served 480 requests" in shown(compared, "text/html")[0]
    (frame,) = shown(table, "text/html")
    assert all(
        f"<th>{name}</th>" in frame for name in ("Slabs-oracle", "buddy-oracle", "paged", "1", "2", "4")
    )


@pytest.mark.slow
def test_throughput_and_waste_are_drawn_in_the_notebook(executed):
    for cell in code_cells(executed)[-2:]:
        (picture,) = shown(cell, "image/png")
        assert base64.b64decode(picture).startswith(b"\x89PNG")


@pytest.mark.slow
def test_what_the_notebook_concludes_is_what_its_cells_computed(executed):
    """Slabs round less than the buddy and more than exact extents; paging wastes least."""
    import kvsim

    names = {}
    exec(compile(code_cells(executed)[1]["source"], "cell", "exec"), names := {"kvsim": kvsim})
    Slabs = names["Slabs"]
    systems = ["contiguous:oracle", "buddy:oracle", {"allocator": Slabs, "reserve": "oracle"}, "paged"]
    exact, buddy, slabs, paged = (
        run.summary.memory.saturated for run in kvsim.compare(systems, request_rate=4, num_prompts=480)
    )
    assert exact.internal < slabs.internal < buddy.internal
    assert slabs.token < exact.token < paged.token
    assert slabs.external < exact.external
