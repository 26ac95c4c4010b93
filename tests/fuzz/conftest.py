"""Shared by all fuzzers: how many cases to try, and an empty directory to try them in."""

import shutil

import pytest
from support.command_files import write_command_files


@pytest.fixture
def cases(request):
    """How many cases to try: the number given by `--fuzz`, else a few."""
    return lambda few: request.config.getoption("--fuzz") or few


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty directory, the current one; the user's profiles and cache are also there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("KVSIM_PROFILES", str(tmp_path / "profiles"))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """One of each kind of file that a command reads, made once."""
    folder = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder.with_name("cache")))
        write_command_files()
    return folder


@pytest.fixture
def files(here, written):
    """The same files in the current directory."""
    shutil.copytree(written, here, dirs_exist_ok=True)
