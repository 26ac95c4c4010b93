"""Lists in a narrow terminal: in several tables, and nothing is cut."""

import io
import re
from collections import Counter

import pytest
from rich.console import Console

from kvsim import cli
from kvsim.reports.fitting import FittingTable

ROWS = [("alpha", "1,000", "a few words on it"), ("beta", "20", "one-very-long-name-of-something")]
TABLE = FittingTable.of(("name", "number", "what it is"), ROWS, words=("what it is",))


def shown(width):
    console = Console(width=width, file=io.StringIO())
    console.print(TABLE)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_where_there_is_room_it_is_one_table():
    head, line, *rows = shown(60)
    assert head == "name  number what it is" and set(line) == {"─"}
    assert rows == [
        "alpha  1,000 a few words on it",
        "beta      20 one-very-long-name-of-something",
    ]


def test_what_does_not_fit_follows_in_another_with_the_names_again():
    lines = shown(36)
    assert [lines.index(head) for head in ("name  number", "name  what it is")] == [0, 5]
    assert "alpha  1,000" in lines and "alpha a few words on it" in lines
    assert "beta  one-very-long-name-of-somethin" in lines and "      g" in lines


@pytest.mark.slow
@pytest.mark.parametrize("command", ["models", "gpus", "allocators", "schedulers", "traces"])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_list_cuts_a_name_or_is_a_column_of_letters(command, width, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVSIM_PROFILES", "profiles")  # a remark has its path, whose length must not matter
    assert cli.main([command]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert not [line for line in lines if re.fullmatch(r"\s*\S", line)]
    assert "…" not in "".join(lines)


def test_all_names_of_models_and_their_hub_names_are_whole_in_60_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    assert cli.main(["models"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"deepseek-v2-lite +deepseek-ai/DeepSeek-V2-Lite", out)
    assert re.search(r"llama-3\.1-70b +70\.6 B +131\.4 GiB +80 +64/8", out)
    assert re.search(r"llama-3\.1-70b +320 KiB +131,072", out)


NUMBERS = re.compile(r"\d[\d,]*\.?\d*")


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize(
    "words",
    [
        ["run", "--num-prompts", "60", "--request-rate", "20"],
        ["run", "--num-prompts", "60", "--request-rate", "20", "--seeds", "2", "--jobs", "1"],
        ["compare", "--num-prompts", "40", "--request-rate", "inf"],
        ["fit", "llama-3.1-8b"],
        ["fit", "llama-3.1-8b", "gemma-3-27b"],
        ["gpus"],
        ["speculation", "llama-3.1-8b"],
    ],
)
def test_no_number_wraps_or_vanishes_in_a_narrow_terminal(words, width, monkeypatch, capsys):
    quiet = ["--no-out", "--no-plots"] if words[0] in ("run", "compare") else []

    def told(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert cli.main([*words, *quiet]) == 0
        out = re.sub(r"simulated .*?CPU-s", "", capsys.readouterr().out, flags=re.DOTALL)  # differs
        return out, Counter(NUMBERS.findall(out))

    _, there = told(400)
    narrow, left = told(width)
    assert "…" not in narrow and max(map(len, narrow.splitlines())) <= width
    assert not there - left
