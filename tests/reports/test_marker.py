"""File ownership: only what kvsim's marker lists is ever replaced or removed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.fake_run import fake_run

from kvsim import cli
from kvsim.reports.html.report import write_report
from kvsim.reports.rundir import whole
from kvsim.reports.rundir.run import read_run
from kvsim.reports.rundir.writing import write_comparison, write_figures, write_run
from kvsim.sim.errors import KvsimError
from kvsim.sim.files.marker import MARKER, UNFINISHED, add_files, foreign, mark, read_marker, remove_marked
from kvsim.sim.files.whole_file import check_file, whole_file

ROOT = Path(cli.__file__).resolve().parent


def tree(directory):
    """Everything below: relative path -> bytes, None for directories, the target of a link."""
    return {
        str(path.relative_to(directory)): os.readlink(path)
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in sorted(directory.rglob("*"))
    }


@pytest.fixture
def out(tmp_path):
    """A run without figures."""
    write_run(tmp_path / "out", **fake_run())
    return tmp_path / "out"


def again(out, **how):
    """Write another run there, with force."""
    write_run(out, **fake_run(seed=2), force=True, **how)


def dead_pid():
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def refused(out, *names):
    """Force is refused, every foreign name is reported, and nothing has changed."""
    before = tree(out.parent)
    with pytest.raises(KvsimError) as told:
        again(out)
    assert all(name in str(told.value) for name in names), told.value
    assert tree(out.parent) == before


def test_a_run_lists_its_files(out):
    marked = json.loads((out / MARKER).read_text())
    names = ["config.json", "requests.parquet", "summary.json", "timeline.parquet"]
    assert (marked["kind"], marked["files"], marked["directories"]) == ("run", names, [])


def test_an_experiment_of_another_tool_is_never_replaced(tmp_path):
    out = tmp_path / "experiment"
    (out / ".git").mkdir(parents=True)
    (out / "checkpoints").mkdir()
    for name in ("config.json", "summary.json", ".git/HEAD", "checkpoints/last.pt"):
        (out / name).write_text("{}")
    refused(out, ".git/", "checkpoints/", "config.json", "and 1 more", "not a kvsim run")


@pytest.mark.parametrize("name", ["notes.md", ".git/HEAD", "analysis/plot.py", "later.parquet"])
def test_notes_in_a_run_are_never_removed(out, name):
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("mine")
    refused(out, name.split("/")[0])


def test_notes_deep_in_a_comparison_are_never_removed(tmp_path):
    out = tmp_path / "out"
    parts = [fake_run(label) for label in ("buddy", "paged")]
    write_comparison(out, parts, config={})
    assert read_marker(out).directories == {"buddy", "paged"}
    again(out)
    write_comparison(out, parts, config={}, force=True)
    (out / "paged" / "notes.md").write_text("mine")
    refused(out, "paged/notes.md")


def test_a_file_that_was_edited_is_still_kvsims(out):
    (out / "config.json").write_text("{}")
    (out / "timeline.parquet").unlink()
    again(out)
    assert read_run(out).config["workload"]["seed"] == 2


@pytest.mark.parametrize("files", [["../t.tex"], ["/t.tex"], ["a/b"], [".."], [""], [3], "abc", None])
def test_a_marker_that_lists_anything_but_plain_names_counts_as_none(out, files):
    (out.parent / "t.tex").write_text("years of work")
    (out / MARKER).write_text(json.dumps({"kvsim": "0", "kind": "run", "files": files, "directories": []}))
    assert read_marker(out) is None
    refused(out, "config.json")
    remove_marked(out)
    assert (out.parent / "t.tex").exists() and (out / "config.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\x00"])
def test_a_damaged_marker_counts_as_none(out, text):
    (out / MARKER).write_text(text)
    refused(out, "older version", "config.json")


def test_a_marker_that_is_a_link_counts_as_none(out, tmp_path):
    (out / MARKER).rename(tmp_path / "elsewhere")
    (out / MARKER).symlink_to(tmp_path / "elsewhere")
    refused(out, MARKER)


def test_a_run_without_a_marker_is_not_replaced(out):
    (out / MARKER).unlink()
    refused(out, "older version", "choose another")


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_refused_as_output_and_its_target_untouched(out, there):
    link, target = out.parent / "link", out if there else out.parent / "missing"
    link.symlink_to(target)
    refused(link, "it is a link to", "name that directory itself")


def test_the_directory_around_may_be_named_and_is_refused_where_it_is_somebodys(out, monkeypatch):
    (out / "inner").mkdir()
    monkeypatch.chdir(out / "inner")
    for path in (Path(".."), Path("../../out/.."), Path("/")):
        with pytest.raises(KvsimError, match=r"choose another|holds what kvsim did not write"):
            again(path)
    assert (out / "config.json").exists()
    (out / "inner").rmdir()


def test_a_place_that_cannot_be_made_is_refused(tmp_path):
    with pytest.raises(KvsimError, match="cannot write"):
        write_run(Path("/proc/nowhere/out"), **fake_run())


def test_a_link_above_the_output_is_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    write_run(tmp_path / "runs" / "out", **fake_run())
    assert (tmp_path / "runs").is_symlink() and read_run(tmp_path / "disk" / "out")


def test_a_listed_file_that_became_a_link_is_not_kvsims(out, tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (out / "config.json").unlink()
    (out / "config.json").symlink_to(tmp_path / "theirs")
    refused(out, "config.json")


def test_what_comes_between_the_check_and_the_replacement_stays(out, monkeypatch):
    real = whole.check_replaceable

    def and_then(*how):
        real(*how)
        (out / "late.md").write_text("mine")

    monkeypatch.setattr(whole, "check_replaceable", and_then)
    before = tree(out)
    with pytest.raises(KvsimError, match="written to meanwhile"):
        again(out)
    assert tree(out) == before | {"late.md": b"mine"}
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.slow
def test_adding_to_a_marker_by_many_at_once_loses_nothing(out):
    code = (
        "import sys; from pathlib import Path; from kvsim.sim.files.marker import add_files\n"
        "for n in range(20): add_files(Path(sys.argv[1]), [f'{sys.argv[2]}-{n}.png'])"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(out), str(n)], cwd=ROOT) for n in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    added = {f"{n}-{m}.png" for n in range(4) for m in range(20)}
    assert read_marker(out).files >= added


def test_nothing_is_added_where_there_is_no_marker(tmp_path):
    add_files(tmp_path, ["a.png"])
    assert tree(tmp_path) == {}


# -- single files ---------------------------------------------------------------------------------


def written(path, text="new", **how):
    with whole_file(path, **how) as part:
        part.write_text(text)


def test_a_file_that_kvsim_did_not_write_needs_force(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("theirs")
    with pytest.raises(KvsimError, match=r"page.html exists.*pass --force"):
        written(path)
    assert tree(tmp_path) == {"page.html": b"theirs"}
    written(path, force=True)
    assert tree(tmp_path) == {"page.html": b"new"}


def test_a_page_takes_the_place_of_a_page_but_not_of_a_file(out, tmp_path):
    page = tmp_path / "page.html"
    write_report([out], page)
    first = page.read_bytes()
    page.write_bytes(first + b"<!-- edited -->")
    write_report([out], page)
    assert page.read_bytes() == first
    page.write_text("<!doctype html><title>my homepage</title>")
    with pytest.raises(KvsimError, match="--force"):
        write_report([out], page)


def test_a_report_in_a_run_is_listed_and_goes_with_it(out):
    write_report([out], out / "report.html")
    write_report([out], out / "report.html")
    assert "report.html" in read_marker(out).files and foreign(out) == []
    again(out)
    assert not (out / "report.html").exists()


@pytest.mark.parametrize("name", ["config.json", "summary.json", "requests.parquet", "map.parquet", MARKER])
def test_a_runs_own_files_are_never_written_over(out, name):
    before = tree(out)
    for spelling in (name, name.upper()):
        with pytest.raises(KvsimError, match="run's own file"):
            written(out / spelling, force=True)
    assert tree(out) == before


@pytest.mark.parametrize("kind", ["link", "link to nothing", "directory", "pipe"])
def test_only_a_plain_file_is_ever_replaced(tmp_path, kind):
    path = tmp_path / "page.html"
    (tmp_path / "theirs").write_text("theirs")
    if kind.startswith("link"):
        path.symlink_to(tmp_path / ("theirs" if kind == "link" else "missing"))
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    before = {name.name: name.lstat().st_mode for name in tmp_path.iterdir()}
    with pytest.raises(KvsimError, match="it is"):
        check_file(path, force=True)
    with pytest.raises(KvsimError, match="it is"):
        written(path, force=True)
    assert {name.name: name.lstat().st_mode for name in tmp_path.iterdir()} == before
    assert (tmp_path / "theirs").read_text() == "theirs"


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ZeroDivisionError(), OSError(28, "full")])
def test_a_file_that_is_not_finished_leaves_nothing(tmp_path, failure):
    with pytest.raises((type(failure), KvsimError)), whole_file(tmp_path / "page.html") as part:
        part.write_text("half")
        raise failure
    assert tree(tmp_path) == {}


def test_leftovers_of_the_dead_are_swept_and_those_of_the_living_are_not(tmp_path):
    dead, living = dead_pid(), os.getppid()
    for name in (f".page.html.partial-{dead}", f".page.html.partial-{living}", f".other.html.partial-{dead}"):
        (tmp_path / name).write_text("half")
    written(tmp_path / "page.html")
    assert set(tree(tmp_path)) == {
        *("page.html", f".page.html.partial-{living}", f".other.html.partial-{dead}")
    }


def test_a_directory_of_the_dead_is_swept_only_if_kvsim_made_it(tmp_path):
    dead = dead_pid()
    ours, theirs = tmp_path / f".out.partial-{dead}", tmp_path / f".out.old-{dead}"
    for directory in (ours, theirs):
        directory.mkdir()
        (directory / "half").write_text("")
    mark(ours, UNFINISHED)
    write_run(tmp_path / "out", **fake_run())
    assert {path.name for path in tmp_path.iterdir()} == {"out", theirs.name}


def test_an_earlier_run_that_a_killed_process_moved_aside_comes_back(out):
    before = tree(out)
    out.rename(out.with_name(f".out.old-{dead_pid()}"))
    with pytest.raises(KvsimError, match="pass --force"):
        write_run(out, **fake_run(seed=2))
    assert tree(out.parent) == {"out": None} | {f"out/{name}": data for name, data in before.items()}


# -- figures --------------------------------------------------------------------------------------


def drawing(*names, text="drawn"):
    return lambda part: [(part / name).write_text(text) for name in names]


def test_figures_in_a_run_are_listed(out):
    assert write_figures(out, drawing("waste.png")) == [out / "waste.png"]
    write_figures(out, drawing("waste.png", text="drawn again"))
    assert (out / "waste.png").read_text() == "drawn again"
    assert "waste.png" in read_marker(out).files and foreign(out) == []


def test_figures_are_drawn_all_or_none(out):
    (out / "waste.png").write_text("theirs")
    before = tree(out)
    with pytest.raises(KvsimError, match=r"waste.png exists"):
        write_figures(out, drawing("memory.png", "waste.png"))
    assert tree(out) == before
    write_figures(out, drawing("memory.png", "waste.png"), force=True)
    assert (out / "waste.png").read_text() == "drawn"


def test_a_directory_of_figures_that_is_new_or_empty_is_marked(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        write_figures(tmp_path / name, drawing("waste.png"))
        write_figures(tmp_path / name, drawing("waste.png", "memory.png"))
        assert read_marker(tmp_path / name).files == {"waste.png", "memory.png"}


def test_a_directory_of_somebody_else_gets_figures_but_no_marker(tmp_path):
    (tmp_path / "paper.tex").write_text("theirs")
    write_figures(tmp_path, drawing("waste.png"))
    assert set(tree(tmp_path)) == {"paper.tex", "waste.png"}
    with pytest.raises(KvsimError, match="--force"):
        write_figures(tmp_path, drawing("waste.png"))


def test_figures_never_go_through_a_link(out, tmp_path):
    (tmp_path / "theirs.png").write_text("theirs")
    (out / "waste.png").symlink_to(tmp_path / "theirs.png")
    with pytest.raises(KvsimError, match="it is a link"):
        write_figures(out, drawing("waste.png"), force=True)
    assert (tmp_path / "theirs.png").read_text() == "theirs"
